"""Match the cells of two results folders and compare them: metrics, statuses and what only one folder has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.claims.paired_ratio import AGAIN
from harness.commands.compare.change import FALSE_FAILURES, FALSE_FINDINGS, significant
from harness.commands.compare.directions import Directions, directions
from harness.commands.compare.folder import ResultsFolder
from harness.commands.compare.metrics import MetricChange, Repeats, changes
from harness.config.validation import ConfigError
from harness.config.variants.optimizations import BASELINE
from harness.records import Record, Status
from harness.statistics import MOST_BAND


class CellName(NamedTuple):
    """A cell without its repeat."""

    suite: str
    workload: str
    optimization: str


class StatusChange(NamedTuple):
    """A cell that ended differently: each status with its number of repeats, in A and in B."""

    cell: CellName
    a: Mapping[str, int]
    b: Mapping[str, int]

    @property
    def is_lost(self) -> bool:
        """Return whether it is a failure: ok in all repeats of A; in B in none, or wrong in one."""
        return set(self.a) == {Status.OK} and (Status.OK not in self.b or Status.WRONG_RESULT in self.b)


class FolderComparison(NamedTuple):
    """What changed from A to B. `verdicts` and `failed` belong to `metrics`, one each.

    A verdict is one of same, worse, better, changed, no difference, undecided.
    """

    metrics: tuple[MetricChange, ...]
    verdicts: tuple[str, ...]
    failed: tuple[bool, ...]
    statuses: tuple[StatusChange, ...]
    only_a: tuple[CellName, ...]
    only_b: tuple[CellName, ...]
    metrics_only_a: int
    metrics_only_b: int
    matched: tuple[tuple[Repeats, Repeats], ...]  # the cells that both folders have
    fail_above: float | None = None

    @property
    def is_failure(self) -> bool:
        """Return whether `--fail-above` was given and something failed."""
        return self.fail_above is not None and (any(self.failed) or any(one.is_lost for one in self.statuses))


_ByMachine = Mapping[str, Repeats]
"""The repeats of one cell by the machine that they ran on: those of unlike hosts are never pooled."""


def compare_folders(a: ResultsFolder, b: ResultsFolder, fail_above: float | None = None) -> FolderComparison:
    """Compare two folders; raises ConfigError where no cell ended ok in both."""
    cells_a, cells_b = _cells(a), _cells(b)
    metrics: list[MetricChange] = []
    matched: list[tuple[Repeats, Repeats]] = []
    statuses: list[StatusChange] = []
    lacking = [0, 0]
    known: dict[str, Directions] = {}
    for name in (one for one in cells_a if one in cells_b):
        if name.suite not in known:
            known[name.suite] = directions(name.suite)
        of, base = known[name.suite], name._replace(optimization=BASELINE)
        is_baseline = name.optimization in (BASELINE, BASELINE + AGAIN)
        statuses += _status_change(name, cells_a[name], cells_b[name])
        for machines in _pairs(cells_a[name], cells_b[name]):
            cells = cells_a[name][machines[0]], cells_b[name][machines[1]]
            baselines = cells_a.get(base, {}).get(machines[0], {}), cells_b.get(base, {}).get(machines[1], {})
            matched.append(cells)
            metrics += changes(cells, None if is_baseline else baselines, of, machines)
            for side, count in enumerate(_metrics_of_one(cells, of)):
                lacking[side] += count
    if not metrics:
        raise ConfigError(f"{a.path} and {b.path}: no cell ended ok in both")
    return FolderComparison(
        tuple(metrics), tuple(_verdicts(metrics)), tuple(_failed(metrics, fail_above)), tuple(statuses),
        tuple(one for one in cells_a if one not in cells_b),
        tuple(one for one in cells_b if one not in cells_a),
        lacking[0], lacking[1], tuple(matched), fail_above,
    )  # fmt: skip


def _cells(folder: ResultsFolder) -> dict[CellName, dict[str, dict[int, Record]]]:
    """Return the records of a folder by cell, machine and repeat; of several of one repeat, the latest."""
    cells: dict[CellName, dict[str, dict[int, Record]]] = {}
    for record in folder.records:
        name = CellName(record.cell.suite, record.cell.workload, record.cell.optimization)
        cells.setdefault(name, {}).setdefault(folder.machine(record), {})[record.cell.repeat] = record
    return cells


def _pairs(a: _ByMachine, b: _ByMachine) -> list[tuple[str, str]]:
    """Return the machines to compare: each with itself, or every one with every one where none is in both."""
    same = [(one, one) for one in a if one in b]
    return same or [(one, other) for one in a for other in b]


def _status_change(name: CellName, a: _ByMachine, b: _ByMachine) -> list[StatusChange]:
    counts = [
        Counter(str(one.status) for repeats in side.values() for one in repeats.values()) for side in (a, b)
    ]
    return [StatusChange(name, *counts)] if set(counts[0]) != set(counts[1]) else []


def _metrics_of_one(cells: tuple[Repeats, Repeats], of: Directions) -> tuple[int, int]:
    """Return how many metrics only A has, and only B, of a cell that ended ok in both."""
    a, b = (
        {
            (one.metric, one.method)
            for record in side.values()
            if record.status == Status.OK
            for one in record.measurements
            if not of.is_series(one.metric)
        }
        for side in cells
    )
    return (len(a - b), len(b - a)) if a and b else (0, 0)


def _verdicts(metrics: Sequence[MetricChange]) -> Iterator[str]:
    """Yield the verdict of each metric: a difference has to stand out among all of them."""
    tested = [i for i, one in enumerate(metrics) if one.change.is_decidable and not one.change.exact]
    found = significant(
        [metrics[i].change.p_different() for i in tested],
        [metrics[i].is_declared for i in tested],
        FALSE_FINDINGS,
    )
    differs = {i for i, one in zip(tested, found, strict=True) if one}
    for i, one in enumerate(metrics):
        if one.not_compared or not one.change.is_decidable:
            yield "undecided"
        elif one.change.exact and one.change.log_ratio == 0:
            yield "same"
        elif one.change.exact or i in differs:
            yield {1: "worse", -1: "better", 0: "changed"}[_direction(one)]
        else:
            low, high = one.change.interval or (0.0, math.inf)
            yield "no difference" if low >= 1 / (1 + MOST_BAND) and high <= 1 + MOST_BAND else "undecided"


def _direction(one: MetricChange) -> int:
    return one.sign if one.change.log_ratio > 0 else -one.sign


def _failed(metrics: Sequence[MetricChange], fail_above: float | None) -> list[bool]:
    """Return which metrics got worse by more than the margin, beyond the noise of the whole comparison."""
    failed = [False] * len(metrics)
    if fail_above is None:
        return failed
    judged = [i for i, one in enumerate(metrics) if one.is_judged]
    found = significant(
        [metrics[i].p_worse(fail_above) for i in judged],
        [metrics[i].is_declared for i in judged],
        FALSE_FAILURES,
    )
    for i, is_worse in zip(judged, found, strict=True):
        failed[i] = is_worse
    for i, one in enumerate(metrics):  # values that repeat exactly have no noise
        failed[i] = failed[i] or (one.is_exact and one.p_worse(fail_above) == 0)
    return failed
