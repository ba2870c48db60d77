"""`python -m harness.fit`: does a training step of the user's model fit a device, and what would make it fit?

Cells of suite memory answer: one searches the largest micro-batch by dry runs, then one per change of the recipe
(conf/fit.yaml) tries a micro-batch that does not fit. Their records stay in a folder, so that the same question is
answered at once.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.validation import ConfigError

if TYPE_CHECKING:
    from harness.config import Run
    from harness.records import Record
    from harness.techniques import Named

USAGE = """\
python -m harness.fit model=PATH [KEY=VALUE ...]    does this training step fit, and which micro-batch at most?

  model=PATH             a Hugging Face config.json, or its folder; no weights are read
  device=h100            a name of conf/hardware, or the memory that a process can use: 48GB, 44.5GiB
  devices=1              GPUs of that kind
  seq_len=2048           tokens of a sequence; at most the model's positions
  micro_batch_size=1     sequences of one forward pass on one GPU
  optimizer=adamw        adamw, sgd_momentum, adafactor, adamw_8bit, muon or paged_adamw_8bit
  techniques=[a,b]       the recipe: [fsdp2,mixed_precision,attention,activation_checkpointing];
                         without it mixed precision and flash attention, and FSDP2 on several devices.
                         python -m harness list techniques has them with their settings
  what_ifs=true          false: answer without trying what else would fit
  out=results/fit        folder of the records; the same question is answered from them

Exit status: 0 the micro-batch fits, 3 it does not fit, 2 a mistake in the command, 1 a failure.
Nothing is allocated: GPU memory is simulated from a dry run of the step and torch's allocator. docs/fit.md

python -m harness.fit model=config.json device=h100 devices=4 seq_len=4096 \\
  techniques=[fsdp2,mixed_precision,attention,activation_checkpointing]
"""

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

FITS, FAILED, MISTAKE, DOES_NOT_FIT = 0, 1, 2, 3
"""Exit statuses."""

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GB|GiB)")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
UNITS_B = {"GB": 1e9, "GiB": 2.0**30}

PLAIN_DEVICE = "gpu_80gb"
"""Whose architecture is taken where `device` is a size."""


class Question(NamedTuple):
    """What is asked, checked. `run`: its first cell is the recipe's, the others are those of `what_ifs`."""

    run: Run
    device: str  # in words
    devices: int
    what_ifs: Sequence[WhatIf]


class WhatIf(NamedTuple):
    """A change of the recipe. `variant`, `workload`: of its cell; `reason`: why there is none."""

    title: str
    variant: str = ""
    workload: str = ""
    reason: str = ""


def main(argv: Sequence[str]) -> int:
    """Answer one question; return the exit status."""
    if not argv or {"-h", "--help"}.intersection(argv):
        sys.stdout.write(USAGE)
        return FITS if argv else MISTAKE
    from harness.executors import ExecutorError
    from harness.executors.start import executor_context
    from harness.store import StoreError

    logging.basicConfig(format="harness.fit: %(message)s", level=logging.ERROR)
    try:
        with executor_context():
            return answer(question_of(argv))
    except (ConfigError, ExecutorError, StoreError) as error:
        sys.stderr.write(f"harness.fit: {error}\n")
        return FAILED if isinstance(error, StoreError) else MISTAKE


def answer(question: Question) -> int:
    """Run what is not on disk yet, print the answer, return the exit status."""
    from harness.fit_answer import Answer, WhatIfResult, lines

    records = {(one.cell.workload, one.cell.optimization): one for one in run_cells(question.run)}
    record = records[next(iter(question.run.workloads)), question.run.variants[0].name]
    if record.status != "ok":
        sys.stderr.write(f"harness.fit: {record.reason or record.status}\n")
        return MISTAKE if record.status == "unavailable" else FAILED
    found = Answer(record, question.device, question.devices)
    tried = [
        WhatIfResult(one.title, one.reason, records.get((one.workload, one.variant)))
        for one in question.what_ifs
    ]
    sys.stdout.write("\n".join(lines(found, tried)) + "\n")
    return FITS if found.fits else DOES_NOT_FIT


def run_cells(run: Run) -> list[Record]:
    """Return the records of a run's cells; runs those that are not on disk."""
    from harness.plan import read_plan
    from harness.store import read_records
    from harness.sweep import sweep

    sweep(run)
    records = {record.cell.id: record for record in read_records(run.out)}
    return [records[cell] for cell in read_plan(run.out).cells if cell in records]


# -- the question


def question_of(argv: Sequence[str]) -> Question:
    """Return what the words ask; raises ConfigError."""
    given = words_of(argv)
    from harness.validation import check_value

    devices = number_of("devices", given.get("devices", "1"))
    check_value("devices", devices, {"type": "int", "at_least": 1})
    check_model(given)
    recipe = recipe_of(given, devices)
    device, hardware = device_of(given.get("device", "h100"))
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
    if what_ifs not in ("true", "false"):
        raise ConfigError(f"what_ifs={what_ifs}: expected true or false")
    run, changes = with_changes(run, recipe, devices, what_ifs == "true")
    return Question(run, device or hardware_name(given.get("device", "h100")), devices, changes)


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


def check_model(given: Mapping[str, str]) -> None:
    """Raise ConfigError where there is no such file; of a name on the Hub, with how to get its config."""
    model = given["model"]
    if not Path(model).exists() and HUB_ID.fullmatch(model) and not model.endswith(".json"):
        raise ConfigError(
            f"model={model}: no such file; of a model on the Hugging Face Hub, download its config: "
            f"hf download {model} config.json --local-dir {model.rpartition('/')[2]}"
        )


def device_of(text: str) -> tuple[str, list[str]]:
    """Return a plain size in words, "" for a name, and the words that choose the device; raises ConfigError."""
    from harness.config import names

    size = SIZE.fullmatch(text)
    if size is None:
        if text not in names("hardware"):
            raise ConfigError(
                f"device={text}: expected a size such as 48GB or 44.5GiB, or one of {', '.join(names('hardware'))}"
            )
        return "", [f"hardware={text}"]
    size_B = float(size[1]) * UNITS_B[size[2]]
    if size_B < 1:
        raise ConfigError(f"device={text}: expected a size above 0")
    given = [f"hardware.{key}={size_B:.0f}.0" for key in ("memory_B", "usable_memory_B")]
    return f"device of {text}", [f"hardware={PLAIN_DEVICE}", *given]


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


def with_changes(run: Run, recipe: Named, devices: int, what_ifs: bool) -> tuple[Run, list[WhatIf]]:
    """Return the run of a recipe and of all what-ifs, and these; those without a cell have a reason."""
    ((name, fields),) = run.workloads.items()
    workloads = {name: {**fields, "search": "largest_micro_batch"}}
    variants = {(first := variant_of(recipe)).name: replace(first, applies_to=(_sizes(workloads[name]),))}
    changes = []
    for entry in settings_of_fit()["what_ifs"] if what_ifs else ():
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


def titles(recipe: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Return a recipe in words."""
    from harness.technique_list import title_of

    return title_of(tuple(recipe))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
