"""Rewrites the records of an earlier schema version, for `harness.commands.migrate`.

Only names change, never a measured value: each version lists what it renamed, and `harness.config.renamed`
the conditions that a suite renamed. Records of a suite that became two are moved into a folder next to the
first, but those of variants that it does not have, which are counted and named. Each file is replaced in one
step, so that an interrupted run can be repeated. An incomplete last line is left as it is: the store sets it
aside.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.renamed import CONDITIONS, MODEL_FIELDS, SETTINGS, SUITE_FIELDS, SUITE_SETTINGS
from harness.records import SCHEMA, Record, Status
from harness.sweep.plan import PLAN
from harness.sweep.store import RECORDS, StoreError, replace_file
from harness.units import counted

logger = logging.getLogger(__name__)

Data = dict[str, Any]


class Split(NamedTuple):
    """A suite that became two: which workloads belong to `suite` now, and which variants it still has."""

    suite: str
    takes: Callable[[Data], bool]
    variants: tuple[str, ...]  # an optimization, or several as "link."; records of all others are left out


SPLITS = {
    "interconnect": Split(
        "interconnect_formula",
        lambda workload: workload.get("parameters") is not None,
        ("baseline", "link.", "gradient_accumulation", "hybrid_shard"),
    ),
    "fabric": Split("fabric_flows", lambda workload: not workload["emulated"], ("",)),
}

DROPPED_FIELDS = {
    "interconnect": ("parameters", "latency_s"),
    "interconnect_formula": (
        "strategy", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
        "vocab_size", "micro_batch_size", "seq_len", "learning_rate", "loss_steps",
    ),
    "fabric": ("emulated", "ranks_per_node", "failed_uplinks"),
    "fabric_flows": ("emulated",),
}  # fmt: skip
"""Fields that a suite's workloads no longer have."""


def from_1_to_2(data: Data) -> Data:
    """Give a record of version 1 the names of version 2."""
    cell = data["cell"]
    suite, config = cell["suite"], cell["config"]
    config["workload"] = rename(config["workload"], {**MODEL_FIELDS, **SUITE_FIELDS.get(suite, {})})
    if suite in SPLITS and SPLITS[suite].takes(config["workload"]):
        suite = cell["suite"] = SPLITS[suite].suite
    for field in DROPPED_FIELDS.get(suite, ()):
        config["workload"].pop(field, None)
    config["settings"] = rename(config["settings"], {**SETTINGS, **SUITE_SETTINGS.get(suite, {})})
    data["notes"] = data.pop("remarks")
    return data


STEPS: Mapping[int, Callable[[Data], Data]] = {1: from_1_to_2}
"""Version -> what turns its records into those of the next."""


def rename(data: Mapping[str, Any], names: Mapping[str, str]) -> Data:
    """Return `data` with its keys renamed by `names`, in the same order; ValueError where it has none."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{data!r} in the place of an object")
    return {names.get(key, key): value for key, value in data.items()}


def migrate_line(line: str) -> str:
    """Return a record's line with the present names; a line that has them is returned as it is.

    Raises ValueError where the line has an unknown version or is no JSON, and other errors where it has no
    record's shape.
    """
    data = json.loads(line)
    version: Any = data.get("schema") if isinstance(data, dict) else None
    present = version == SCHEMA
    while version != SCHEMA:
        if version not in STEPS:
            earlier = ", ".join(map(str, STEPS))
            raise ValueError(
                f"schema version {version!r} is unknown; the present one is {SCHEMA}, earlier ones: {earlier}"
            )
        data = STEPS[version](data)
        version += 1
        data["schema"] = version
    conditions = rename(data["conditions"], CONDITIONS.get(data["cell"]["suite"], {}))
    if present and conditions == data["conditions"]:
        return line
    data["conditions"] = conditions
    return json.dumps(data, separators=(",", ":"))


def migrate(folder: Path) -> int:
    """Rewrite the records of `folder`; return how many changed. Raises `StoreError`."""
    path = folder / RECORDS
    try:
        text = path.read_text()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"cannot read {path}: it is not UTF-8 at byte {error.start}") from error
    lines, torn = _complete_lines(text)
    if torn:
        logger.warning("%s: the last line is no complete record and is left as it is", path)
    migrated = []
    for number, line in enumerate(lines, 1):
        try:
            migrated.append(migrate_line(line))
        except ValueError as error:
            raise StoreError(f"{path}, line {number}: {error}") from error
        except (LookupError, TypeError, RecursionError) as error:
            raise StoreError(f"{path}, line {number}: not a record: {error!r}") from error
    changed = sum(old != new for old, new in zip(lines, migrated, strict=True))
    if changed:
        try:
            _write(folder, migrated, torn)
        except OSError as error:
            raise StoreError(f"cannot write into {folder}: {error.strerror}") from error
    return changed


def _complete_lines(text: str) -> tuple[list[str], str]:
    """Return the lines without their ends, and apart from them the last one if it was not written in full."""
    *lines, last = text.removesuffix("\n").split("\n")
    try:
        json.loads(last)
    except ValueError:
        return lines, text[len(text.removesuffix("\n")) - len(last) :]
    return [*lines, last], ""


def replan(folder: Path) -> int:
    """Leave cells out of a plan that today's plan does not have, and that were unavailable; return how many.

    Such a cell only says that its variant does not apply. Its record stays, and no report shows it.
    """
    from harness.config.run import load, names
    from harness.sweep.plan import is_planned, not_planned, read_plan, write_cells
    from harness.sweep.store import read_records

    plan = read_plan(folder) if (folder / PLAN).exists() else None
    if plan is None or plan.suite not in names("suite"):
        return 0
    (run,) = load([f"suite={plan.suite}"])
    variants = {variant.name: variant for variant in run.variants}

    def goes(record: Record) -> bool:
        variant, workload = variants.get(record.cell.optimization), record.cell.workload
        if record.status != Status.UNAVAILABLE or variant is None or workload not in run.workloads:
            return False
        return not is_planned(run, variant, workload, gpu=False)

    records = read_records(folder)
    gone = {record.cell.id for record in records if goes(record)} & set(plan.cells)
    if gone:
        kept = tuple(cell for cell in plan.cells if cell not in gone)
        run = replace(run, repeats=1 + max(record.cell.repeat for record in records))
        write_cells(folder, plan._replace(cells=kept, left_out=tuple(not_planned(run, gpu=False))))
    return len(gone)


def _write(folder: Path, lines: Sequence[str], torn: str) -> None:
    """Replace the records of `folder` by `lines`, followed by `torn`.

    Records of a suite that was split off are first moved into a folder of their own.
    """
    cells = {line: json.loads(line)["cell"] for line in lines}
    for name, split in SPLITS.items():
        moved = [line for line in lines if cells[line]["suite"] == split.suite]
        if not moved:
            continue
        kept = [line for line in moved if _is_variant(cells[line]["optimization"], split.variants)]
        lines = [line for line in lines if line not in set(moved)]
        if len(kept) < len(moved):
            names = sorted({cells[line]["optimization"] for line in set(moved) - set(kept)})
            logger.warning(
                "%s: left out %s of variants that %s does not have: %s",
                folder, counted(len(moved) - len(kept), "record"), split.suite, ", ".join(names),
            )  # fmt: skip
        target = folder.with_name(split.suite if folder.name == name else f"{folder.name}_{split.suite}")
        _split_off(folder, target, split.suite, {cells[line]["id"]: line for line in kept})
        _filter_plan(folder / PLAN, folder / PLAN, name, {cells[line]["id"] for line in lines})
    replace_file(folder / RECORDS, _text(lines) + torn.encode())


def _is_variant(name: str, variants: Sequence[str]) -> bool:
    return any(name == one or ((one.endswith(".") or not one) and name.startswith(one)) for one in variants)


def _split_off(folder: Path, target: Path, suite: str, lines: Mapping[str, str]) -> None:
    """Write `lines`, by cell, into `target` with their plan and environments.

    Raises `StoreError` if the target has other records.
    """
    records = target / RECORDS
    if records.exists():
        present = {json.loads(line)["cell"]["id"] for line in records.read_text().splitlines()}
        if not present <= lines.keys():
            raise StoreError(f"{target} holds other records, and those of {suite} belong there: move it away")
    target.mkdir(exist_ok=True)
    for environment in folder.glob("environment-*.json"):
        shutil.copy(environment, target)
    _filter_plan(folder / PLAN, target / PLAN, suite, lines.keys())
    replace_file(records, _text(lines.values()))


def _filter_plan(source: Path, target: Path, suite: str, cells: Collection[str]) -> None:
    """Write the plan in `source` to `target` as one of `suite`, with those of its `cells`."""
    if source.exists():
        plan = json.loads(source.read_text())
        plan |= {"suite": suite, "cells": [cell for cell in plan["cells"] if cell in cells]}
        replace_file(target, (json.dumps(plan, indent=0) + "\n").encode())


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
