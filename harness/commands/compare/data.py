"""A comparison of two folders as JSON: every metric, status and condition; values in base units.

The conditions in which two results folders differ: hosts, libraries, code, the cells' configuration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.commands.compare.change import Change
from harness.commands.compare.comparison import (
    FolderComparison,
    MetricChange,
    Repeats,
    ResultsFolder,
    machine,
)
from harness.records import Record

HOST = "host"
FEW_VALUES = 3
"""A condition with more different pairs of values than this is named without them."""

LONGEST = 60
"""Longer values are cut to so many characters."""


class ConditionChange(NamedTuple):
    """A condition with its values in A and B as text; `cells`: in how many cells, 0 for the whole run."""

    name: str
    a: str
    b: str
    cells: int = 0


def condition_changes(
    a: ResultsFolder, b: ResultsFolder, matched: Sequence[tuple[Repeats, Repeats]]
) -> list[ConditionChange]:
    """Return every condition that differs, that of the hosts first."""
    return [*_of_environments(_used(a), _used(b)), *_of_cells(matched)]


def same_identities(matched: Sequence[tuple[Repeats, Repeats]]) -> int:
    """Return how many cells have the same identity in both: configuration, sources, machine and libraries."""
    return sum({one.cell.id for one in a.values()} == {one.cell.id for one in b.values()} for a, b in matched)


def _used(folder: ResultsFolder) -> list[Mapping[str, Any]]:
    names = dict.fromkeys(record.environment for record in folder.records)
    return [folder.environments.get(name, {"unknown": name}) for name in names]


def _of_environments(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> Iterator[ConditionChange]:
    described = [[dict(_described(one)) for one in side] for side in (a, b)]
    names = dict.fromkeys(name for side in described for one in side for name in one)
    for name in names:
        first, second = (
            ", ".join(dict.fromkeys(one.get(name) or "none" for one in side)) for side in described
        )
        if first != second:
            yield ConditionChange(name, first, second)


def _described(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what numbers depend on, as (name, text)."""
    if "unknown" in environment:
        yield HOST, f"unknown host {environment['unknown']}".strip()
        return
    yield HOST, machine(environment)
    yield "GPU driver", str(environment.get("driver", ""))
    for library, version in environment.get("versions", {}).items():
        yield library, str(version)
    yield "Python", str(environment.get("python", ""))
    yield "system", str(environment.get("system", ""))
    commit = str(environment.get("commit", ""))[:7]
    yield "commit", f"{commit} with changes" if environment.get("dirty") and commit else commit


def _of_cells(matched: Sequence[tuple[Repeats, Repeats]]) -> Iterator[ConditionChange]:
    """Yield what differs in the cells' configuration and conditions; cells that differ alike in one."""
    found: dict[str, dict[tuple[str, str], int]] = {}
    for a, b in matched:
        first, second = (dict(_of_record(next(iter(side.values())))) for side in (a, b))
        if len(a) != len(b):
            first["repeats"], second["repeats"] = str(len(a)), str(len(b))
        for name in dict.fromkeys([*first, *second]):
            pair = first.get(name, "none"), second.get(name, "none")
            if pair[0] != pair[1]:
                pairs = found.setdefault(name, {})
                pairs[pair] = pairs.get(pair, 0) + 1
    for name, pairs in found.items():
        if len(pairs) > FEW_VALUES:
            yield ConditionChange(name, "several values", "others", sum(pairs.values()))
        else:
            for (one, other), count in pairs.items():
                yield ConditionChange(name, _cut(one), _cut(other), count)


def _of_record(record: Record) -> Iterator[tuple[str, str]]:
    for name, value in _flat(record.cell.config):
        yield name, value
    for name, value in record.conditions.items():
        yield f"condition {name}", str(value)
    yield "seed", str(record.cell.seed - record.cell.repeat)
    yield "limits.timeout_s", f"{record.limits.timeout_s:g}"
    yield "limits.memory_B", str(record.limits.memory_B)


def _flat(data: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        where = f"{name}.{key}" if name else str(key)
        if isinstance(value, Mapping):
            yield from _flat(value, where)
        else:
            yield where, str(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


FORMAT = 1
"""Version of this JSON."""


def as_data(
    a: ResultsFolder, b: ResultsFolder, found: FolderComparison, conditions: Sequence[ConditionChange]
) -> dict[str, Any]:
    """Return the comparison as plain data; what is infinite or unknown is None."""
    return {
        "format": FORMAT,
        "a": str(a.path),
        "b": str(b.path),
        "fail_above": found.fail_above,
        "failure": found.is_failure,
        "metrics": [
            _metric(one) | {"verdict": verdict, "failure": failed}
            for one, verdict, failed in zip(found.metrics, found.verdicts, found.failed, strict=True)
        ],
        "statuses": [
            one.cell._asdict() | {"a": dict(one.a), "b": dict(one.b), "lost": one.is_lost}
            for one in found.statuses
        ],
        "only_a": [one._asdict() for one in found.only_a],
        "only_b": [one._asdict() for one in found.only_b],
        "conditions": [one._asdict() for one in conditions],
        "cells": len(found.matched),
        "cells_with_same_identity": same_identities(found.matched),
    }


def _metric(one: MetricChange) -> dict[str, Any]:
    data = {
        name: value
        for name, value in one._asdict().items()
        if name not in ("change", "effect_change", "machines", "is_declared")
    }
    return {name: _finite(value) for name, value in data.items()} | {
        "machine_a": one.machines[0],
        "machine_b": one.machines[1],
        "compared_in_report": one.is_declared,
        "ratio": _change(one.change),
        "ratio_of_effects": _change(one.effect_change),
    }


def _change(change: Change | None) -> dict[str, Any] | None:
    if change is None or math.isnan(change.log_ratio):
        return None
    low, high = change.interval or (None, None)
    return {
        "value": _finite(change.ratio),
        "low": _finite(low),
        "high": _finite(high),
        "exact": change.exact,
        "degrees_of_freedom": change.degrees,
        "processes_a": change.processes[0],
        "processes_b": change.processes[1],
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
