"""What `harness.fit` was asked: words of the command to a run of suite memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.commands.fit.recipe import WhatIf, recipe_of, what_ifs_of, with_cells
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.config.run import Run

KEYS = (
    "model",
    "device",
    "devices",
    "seq_len",
    "micro_batch_size",
    "optimizer",
    "techniques",
    "what_ifs",
    "out",
)

WHAT_IFS = ("true", "all", "false")
"""Which of the what-ifs of conf/fit.yaml are tried; those that are `slow` only with "all"."""

UNITS_B = {"MB": 1e6, "MiB": 2.0**20, "GB": 1e9, "GiB": 2.0**30}
SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS_B)})", re.IGNORECASE)

TOKEN_BY_TOKEN = frozenset(["falcon_mamba", "jamba", "mamba", "recurrent_gemma", "rwkv"])
"""Architectures whose code in transformers has a loop over tokens."""

MOST_TOKENS = 128
"""Of such a sequence: a dry run of 24 layers then takes 10 s, and the answer needs several."""

DEFAULT_DEVICE = "h100_80gb"
"""It also gives the architecture where `device` is a size."""


class Question(NamedTuple):
    """What is asked, checked. `run`: its first cell is the recipe's, the others are those of `what_ifs`."""

    run: Run
    model: str  # the file, without its folder
    device: str  # in words
    devices: int
    what_ifs: Sequence[WhatIf]
    recipe_is_ours: bool  # no techniques were given

    @property
    def recipe(self) -> tuple[str, str]:
        """Return the workload and the variant of the recipe's cell."""
        return next(iter(self.run.workloads)), self.run.variants[0].name

    @property
    def default_recipe(self) -> set[str]:
        """Return the techniques of the recipe but the optimizer, which has a key of its own."""
        return {name for name, _ in self.run.variants[0].techniques} - {"optimizer"}


def question_of(argv: Sequence[str], left_out: Collection[str] = ()) -> Question:
    """Return what the words ask; raises ConfigError. `left_out`: see `recipe_of`."""
    given = words_of(argv)
    from harness.config.validation import check_value

    devices = number_of("devices", given.get("devices", "1"))
    check_value("devices", devices, {"type": "int", "at_least": 1})
    recipe = recipe_of(given, devices, left_out)
    device, hardware = device_of(given.get("device", DEFAULT_DEVICE))
    words = [
        "suite=memory",
        *hardware,
        f"suite.workload_from={quoted(given['model'])}",
        f"suite.hf_defaults.dp_size={devices}",
        *(f"suite.hf_defaults.{key}={given[key]}" for key in ("seq_len", "micro_batch_size") if key in given),
        f"out={quoted(given.get('out', 'results/fit'))}",
    ]
    run = loaded(words)
    refuse_long_loops(run)
    tried = given.get("what_ifs", "true")
    if tried not in WHAT_IFS:
        raise ConfigError(f"what_ifs={tried}: expected one of {', '.join(WHAT_IFS)}")
    what_ifs = [] if tried == "false" else list(what_ifs_of(run, recipe, tried == "all", left_out))
    run = with_cells(run, recipe, what_ifs)
    return Question(run, model_name(given["model"]), device, devices, what_ifs, "techniques" not in given)


def words_of(argv: Sequence[str]) -> dict[str, str]:
    """Return the values by key; raises ConfigError."""
    from harness.config.validation import unknown

    given: dict[str, str] = {}
    for word in argv:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ConfigError(f"{word}: expected KEY=VALUE; keys: {', '.join(KEYS)}")
        if key not in KEYS:
            raise unknown(key, key, KEYS)
        if key in given:
            raise ConfigError(f"{key}: given twice")
        given[key] = value
    if "model" not in given:
        raise ConfigError("model: missing; give model=PATH, a Hugging Face config.json or its folder")
    return given


def number_of(key: str, text: str) -> int:
    """Return a whole number; raises ConfigError."""
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{key}={text}: expected a whole number") from None


def model_name(path: str) -> str:
    """Return a model's file for display, with its folder where the file is called config.json."""
    file = Path(path)
    return f"{file.parent.name}/{file.name}".strip("/") if file.name == "config.json" else file.name


def device_of(text: str) -> tuple[str, list[str]]:
    """Return the device in words, and the words of a command that choose it; raises ConfigError."""
    from harness.config.run import names

    size = SIZE.fullmatch(text)
    if size is None:
        option, known = text.lower(), names("hardware")
        if option not in known:
            near = [one for one in known if one.startswith(option)]
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"device={text}: expected a size such as 48GB or 44.5GiB{hint or ','} or one of "
                f"{', '.join(known)}"
            )
        return hardware_name(option), [f"hardware={option}"]
    unit = next(one for one in UNITS_B if one.lower() == size[2].lower())
    size_B = float(size[1]) * UNITS_B[unit]
    if size_B < 1:
        raise ConfigError(f"device={text}: expected a size above 0")
    given = [f"hardware.{key}={size_B:.0f}.0" for key in ("memory_B", "usable_memory_B")]
    return f"device of {size[1]} {unit}", [f"hardware={DEFAULT_DEVICE}", *given]


def hardware_name(option: str) -> str:
    """Return a device's name as conf/hardware has it."""
    from harness.config.variants.optimizations import CONF, read_yaml

    return str(read_yaml(CONF / "hardware" / f"{option}.yaml")["name"])


def loaded(words: Sequence[str]) -> Run:
    """Return the run that words describe; raises ConfigError, which names the keys of this command."""
    from harness.config.run import load

    try:
        return load(words)[0]
    except ConfigError as error:
        text = str(error).replace("suite.hf_defaults.", "").replace("suite.workload_from", "model")
        raise ConfigError(text) from None


def refuse_long_loops(run: Run) -> None:
    """Raise ConfigError where a dry run would take minutes, because the model runs token by token."""
    (fields,) = run.workloads.values()
    model_type, tokens = fields["hf_config"]["model_type"], fields["seq_len"]
    if model_type in TOKEN_BY_TOKEN and tokens > MOST_TOKENS:
        raise ConfigError(
            f"seq_len={tokens}: transformers runs {model_type} token by token, so its dry runs take minutes; "
            f"expected at most {MOST_TOKENS}"
        )


def quoted(text: str) -> str:
    """Return text as one value of Hydra's grammar."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
