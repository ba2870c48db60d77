"""What `harness.fit` was asked: words of the command to a run of suite memory, with the recipes to try."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.validation import ConfigError

if TYPE_CHECKING:
    from harness.config import Run
    from harness.techniques import Named

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

LATER = "try it with what_ifs=all"
"""Why a slow one is not tried."""

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(MB|MiB|GB|GiB)")
UNITS_B = {"MB": 1e6, "MiB": 2.0**20, "GB": 1e9, "GiB": 2.0**30}

DEFAULT_DEVICE = "h100_80gb"
"""It also gives the architecture where `device` is a size."""


class Question(NamedTuple):
    """What is asked, checked. `run`: its first cell is the recipe's, the others are those of `what_ifs`."""

    run: Run
    device: str  # in words
    devices: int
    what_ifs: Sequence[WhatIf]
    recipe_is_ours: bool  # no techniques were given


class WhatIf(NamedTuple):
    """A change of the recipe. `variant`, `workload`: of its cell; `reason`: why there is none."""

    title: str
    variant: str = ""
    workload: str = ""
    reason: str = ""


def question_of(argv: Sequence[str]) -> Question:
    """Return what the words ask; raises ConfigError."""
    given = words_of(argv)
    from harness.validation import check_value

    devices = number_of("devices", given.get("devices", "1"))
    check_value("devices", devices, {"type": "int", "at_least": 1})
    recipe = recipe_of(given, devices)
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
    what_ifs = given.get("what_ifs", "true")
    if what_ifs not in WHAT_IFS:
        raise ConfigError(f"what_ifs={what_ifs}: expected one of {', '.join(WHAT_IFS)}")
    run, changes = with_changes(run, recipe, devices, what_ifs)
    return Question(
        run,
        device or hardware_name(given.get("device", DEFAULT_DEVICE)),
        devices,
        changes,
        "techniques" not in given,
    )


def words_of(argv: Sequence[str]) -> dict[str, str]:
    """Return the values by key; raises ConfigError."""
    from harness.validation import unknown

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


def device_of(text: str) -> tuple[str, list[str]]:
    """Return a size in words, "" for a name, and the words that choose the device; raises ConfigError."""
    from harness.config import names

    size = SIZE.fullmatch(text)
    if size is None:
        if text not in names("hardware"):
            near = [one for one in names("hardware") if one.startswith(text)]
            hint = f"; did you mean {near[0]}?" if near else ""
            known = ", ".join(names("hardware"))
            raise ConfigError(
                f"device={text}: expected a size such as 48GB or 44.5GiB{hint or ','} or one of {known}"
            )
        return "", [f"hardware={text}"]
    size_B = float(size[1]) * UNITS_B[size[2]]
    if size_B < 1:
        raise ConfigError(f"device={text}: expected a size above 0")
    given = [f"hardware.{key}={size_B:.0f}.0" for key in ("memory_B", "usable_memory_B")]
    return f"device of {text}", [f"hardware={DEFAULT_DEVICE}", *given]


def hardware_name(option: str) -> str:
    """Return a device's name as conf/hardware has it."""
    from harness.optimizations import CONF, read_yaml

    return str(read_yaml(CONF / "hardware" / f"{option}.yaml")["name"])


def loaded(words: Sequence[str]) -> Run:
    """Return the run that words describe; raises ConfigError, which names the keys of this command."""
    from harness.config import load

    try:
        return load(words)[0]
    except ConfigError as error:
        text = str(error).replace("suite.hf_defaults.", "").replace("suite.workload_from", "model")
        raise ConfigError(text) from None


def quoted(text: str) -> str:
    """Return text as one value of Hydra's grammar."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# -- recipes


def settings_of_fit() -> Mapping[str, Any]:
    """Return conf/fit.yaml."""
    from harness.optimizations import CONF, read_yaml

    return read_yaml(CONF / "fit.yaml")


def recipe_of(given: Mapping[str, str], devices: int) -> Named:
    """Return the techniques of the question; raises ConfigError."""
    from harness.technique_list import combination
    from harness.techniques import TECHNIQUES, settings_of

    if "techniques" in given:
        listed = list_of("techniques", given["techniques"])
    else:
        listed = list(settings_of_fit()["techniques"]["one" if devices == 1 else "several"])
    optimizer = given.get("optimizer", "adamw")
    allowed = settings_of(TECHNIQUES / "optimizer.py")["name"]["one_of"]
    if optimizer not in allowed:
        raise ConfigError(f"optimizer={optimizer}: expected one of {', '.join(allowed)}")
    if optimizer != "adamw":
        listed = [*listed, {"optimizer": {"name": optimizer}}]
    recipe = combination(listed)
    sharing = techniques_of_role("PARALLELISM")
    if devices > 1 and not any(name in sharing for name, _ in recipe):
        raise ConfigError(
            f"devices={devices}: none of techniques uses more than one; add one of {', '.join(sharing)}"
        )
    return recipe


def list_of(key: str, text: str) -> list[Any]:
    """Return a list in Hydra's grammar; raises ConfigError."""
    from harness.overrides import parse

    (override,) = parse([f"{key}={text}"])
    value = override.value()
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ConfigError(f"{key}={text}: expected a list, as in {key}=[{text}]")
    return value


def techniques_of_role(role: str) -> list[str]:
    """Return the techniques with a role of `suites.training.step.Role`; reads their modules."""
    from harness.protocols import statement
    from harness.techniques import TECHNIQUES, built

    found = {name: statement(TECHNIQUES / f"{name}.py", "ROLE") for name in built()}
    import ast

    return [name for name, one in found.items() if one and ast.unparse(one).endswith(f"Role.{role}")]


def variant_of(recipe: Named) -> Any:
    """Return a recipe as the variant of a run."""
    from harness.optimizations import Variant
    from harness.technique_list import KEY, name_of, title_of

    return Variant(name_of(recipe), KEY, {}, recipe, title_of(recipe))


def with_changes(run: Run, recipe: Named, devices: int, what_ifs: str) -> tuple[Run, list[WhatIf]]:
    """Return the run of a recipe and of all what-ifs, and these; those without a cell have a reason."""
    ((name, fields),) = run.workloads.items()
    workloads = {name: {**fields, "search": "largest_micro_batch"}}
    variants = {(first := variant_of(recipe)).name: replace(first, applies_to=(_sizes(workloads[name]),))}
    changes = []
    for entry in settings_of_fit()["what_ifs"] if what_ifs != "false" else ():
        if entry.get("devices", "") == ("several" if devices == 1 else "one"):
            continue
        try:
            changed = changed_recipe(recipe, entry)
        except ConfigError as error:
            changes.append(WhatIf(entry["title"], reason=str(error).removeprefix("techniques: ")))
            continue
        sizes = {key: max(1, int(fields[key] * times)) for key, times in entry.get("times", {}).items()}
        if changed == recipe and not sizes:
            continue  # the recipe has it
        if entry.get("slow") and what_ifs != "all":
            changes.append(WhatIf(entry["title"], reason=LATER))
            continue
        workload = ", ".join([name, "changed", *(f"{key}={size}" for key, size in sizes.items())])
        workloads[workload] = {**fields, **sizes, "search": "fits"}
        variant = variant_of(changed)
        before = variants.get(variant.name, variant)
        applies_to = (*before.applies_to, _sizes(workloads[workload]))
        variants[variant.name] = replace(before, applies_to=applies_to)
        changes.append(WhatIf(entry["title"], variant.name, workload))
    run = replace(run, workloads=workloads, variants=tuple(variants.values()), isolate_if="search")
    return run, changes


def _sizes(fields: Mapping[str, Any]) -> Mapping[str, tuple[Any]]:
    """Return the values by which the workloads of a question differ, as an alternative of `applies_to`."""
    return {key: (fields[key],) for key in ("search", "dp_size", "seq_len")}


def changed_recipe(recipe: Named, entry: Mapping[str, Any]) -> Named:
    """Return the recipe with a what-if's techniques; raises ConfigError where they do not combine."""
    from harness.technique_list import combination
    from harness.techniques import checked_techniques

    merged = {name: dict(settings) for name, settings in recipe if name not in entry.get("without", ())}
    for name, settings in checked_techniques("conf/fit.yaml", list(entry.get("techniques", ()))):
        merged[name] = {**merged.get(name, {}), **settings}
    return combination([{name: settings} for name, settings in merged.items()])
