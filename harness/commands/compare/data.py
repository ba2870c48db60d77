"""A comparison of two folders as JSON: every metric, status and condition; values in base units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.commands.compare.change import Change
from harness.commands.compare.comparison import FolderComparison
from harness.commands.compare.condition_changes import ConditionChange, same_identities
from harness.commands.compare.folder import ResultsFolder
from harness.commands.compare.metrics import MetricChange

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
