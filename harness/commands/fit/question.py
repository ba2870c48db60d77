"""What `harness.fit` was asked: words of the command to a run of suite memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.commands.fit.recipe import WhatIf, recipe_of, what_ifs_of, with_cells
from harness.commands.grammar import RequestedDevice, datasheet, device_of, read
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.config.run import Run
    from harness.config.variants.techniques import Named

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

TOKEN_BY_TOKEN = frozenset(["falcon_mamba", "jamba", "mamba", "recurrent_gemma", "rwkv"])
"""Architectures whose code in transformers has a loop over tokens."""

MOST_TOKENS = 128
"""Tokens of such a sequence at most: a dry run of 24 layers then takes 10 s, and the answer needs several."""

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
    out: Path  # the folder of all questions, in which `run` has its own

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
    words = read(argv, KEYS)
    if words.paths:
        raise ConfigError(f"{words.paths[0]}: expected KEY=VALUE; keys: {', '.join(KEYS)}")
    given = words.values
    if "model" not in given:
        raise ConfigError("model: missing; give model=PATH, a Hugging Face config.json or its folder")
    devices = words.whole("devices", 1)
    recipe = recipe_of(given, devices, left_out)
    device = device_of(words.text("device", DEFAULT_DEVICE))
    asked = [
        "suite=memory",
        *hardware_words(device),
        f"suite.workload_from={quoted(given['model'])}",
        f"suite.hf_defaults.dp_size={devices}",
        *(f"suite.hf_defaults.{key}={given[key]}" for key in ("seq_len", "micro_batch_size") if key in given),
    ]
    run = loaded(asked)
    refuse_long_loops(run)
    tried = words.one_of("what_ifs", WHAT_IFS, "true")
    what_ifs = [] if tried == "false" else list(what_ifs_of(run, recipe, tried == "all", left_out))
    out = Path(given.get("out", "results/fit"))
    run = replace(with_cells(run, recipe, what_ifs), out=out / question_id(run, recipe))
    return Question(
        run, model_name(given["model"]), device.title, devices, what_ifs, "techniques" not in given, out
    )


def question_id(run: Run, recipe: Named) -> str:
    """Return the name of a question's folder: questions that differ in their what-ifs alone share one."""
    from harness.records import digest

    return digest([dict(run.workloads), recipe])[:16]


def model_name(path: str) -> str:
    """Return a model's file for display, with its folder where the file is called config.json."""
    file = Path(path)
    return f"{file.parent.name}/{file.name}".strip("/") if file.name == "config.json" else file.name


def hardware_words(device: RequestedDevice) -> list[str]:
    """Return the words of a command that choose a device; one without a usable size has all of its memory."""
    if device.memory_B is None:
        sheet = datasheet(device.option)
        whole = [] if sheet.get("usable_memory_B") else [f"hardware.usable_memory_B={sheet['memory_B']}"]
        return [f"hardware={device.option}", *whole]
    sizes = [f"hardware.{key}={device.memory_B:.0f}.0" for key in ("memory_B", "usable_memory_B")]
    return [f"hardware={DEFAULT_DEVICE}", *sizes]


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
