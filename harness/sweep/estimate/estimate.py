"""How long a sweep will take: from earlier cells where there are any, else from its limits; pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from harness.records import Cell, Group, Limits, Sampling, Status
from harness.sweep.estimate.history import Earlier
from harness.sweep.worker.interleaved_sampler import WARM_UP_SHARE

START_UP_S = 5.0
"""Per process that is not forked: importing torch and a suite takes 4 to 6 s on two cores; records do not
include it."""

PACE_AFTER_S = 30.0
"""Seconds, predicted or real, that must be over before a sweep's own pace corrects the prediction."""


class EstimateBasis(StrEnum):
    """What the estimate of a cell rests on, best first."""

    SAME_HOST = "on this kind of host"
    OTHER_HOST = "on another host"
    OTHER_FIELDS = "of the same name with other fields"
    OTHER_VARIANTS = "of the same workload's other variants"
    OTHER_WORKLOADS = "of the same variant on other workloads"
    BUDGET = "the sampling budget"
    LIMIT = "the limit"


class CellEstimate(NamedTuple):
    """How long one cell takes, its share of its process's start included."""

    seconds: float
    basis: EstimateBasis
    times_out: bool = False  # expected to run into its limit


class SweepEstimate(NamedTuple):
    """How long the cells of a sweep take. Those without any earlier run may take as long as their limit."""

    cells: Mapping[str, CellEstimate]
    workers: int

    @property
    def seconds(self) -> float:
        """Return the expected duration, without cells of which only the limit is known."""
        known_s = sum(cell.seconds for cell in self.cells.values() if cell.basis != EstimateBasis.LIMIT)
        return known_s / self.workers

    @property
    def unknown(self) -> list[str]:
        """Return the ids of cells of which only the limit is known."""
        return [name for name, cell in self.cells.items() if cell.basis == EstimateBasis.LIMIT]

    @property
    def bases(self) -> Counter[EstimateBasis]:
        """Return how many cells are estimated on each basis."""
        return Counter(cell.basis for cell in self.cells.values())


def estimate(
    groups: Sequence[Group],
    earlier: Sequence[Earlier],
    limits: Limits,
    workers: int,
    forks: Callable[[Group], bool] = lambda group: False,
) -> SweepEstimate:
    """Estimate each cell of `groups`: those that are still to be run. `forks`: see `Executor.forks`."""
    known = defaultdict(list)
    of_workload, of_variant = defaultdict(list), defaultdict(list)
    for one in earlier:
        known[one.cell.workload, one.cell.optimization].append(one)
        of_workload[one.cell.workload].append(one)
        of_variant[one.cell.optimization].append(one)
    cells = {}
    imported = False  # by the process that forks children
    for group in groups:
        start_s = 0.0 if forks(group) and imported else START_UP_S
        imported = imported or forks(group)
        for cell in group.cells:
            cell_estimate = _of_cell(cell, known[cell.workload, cell.optimization], group.sampling, limits)
            if cell_estimate.basis == EstimateBasis.BUDGET:
                cell_estimate = _of_other_workloads(cell_estimate, of_variant[cell.optimization])
            if cell_estimate.basis == EstimateBasis.LIMIT:
                cell_estimate = _of_other_variants(cell, of_workload[cell.workload], limits) or cell_estimate
            cells[cell.id] = cell_estimate._replace(
                seconds=cell_estimate.seconds + start_s / len(group.cells)
            )
    return SweepEstimate(cells, workers)


def at_least(expected: SweepEstimate, seconds: Mapping[str, float]) -> SweepEstimate:
    """Return the estimate with what some cells take at least, whatever earlier cells took elsewhere."""
    cells = {
        name: cell._replace(seconds=max(cell.seconds, seconds.get(name, 0.0)))
        for name, cell in expected.cells.items()
    }
    return expected._replace(cells=cells)


def _of_cell(
    cell: Cell, earlier: Sequence[Earlier], sampling: Sampling | None, limits: Limits
) -> CellEstimate:
    """Return the median of the closest earlier cells, else what the plan allows."""
    if earlier:
        closest = min(_source(cell, one) for one in earlier)
        alike = [one for one in earlier if _source(cell, one) == closest]
        seconds = statistics.median(one.duration_s for one in alike)
        times_out = any(one.status == Status.TIMED_OUT and one.timeout_s >= limits.timeout_s for one in alike)
        if sampling is None:  # of interleaved cells the limit counts for each turn
            times_out = times_out or seconds >= limits.timeout_s
            seconds = min(seconds, limits.timeout_s)
        elif RANKED[closest] == EstimateBasis.OTHER_FIELDS and any(one.status == Status.OK for one in alike):
            seconds = max(seconds, _budget_s(sampling))  # a smaller one of this name may have needed less
        return CellEstimate(seconds, RANKED[closest], times_out)
    if sampling is not None and sampling.budget_s:
        return CellEstimate(_budget_s(sampling), EstimateBasis.BUDGET)
    return CellEstimate(limits.timeout_s, EstimateBasis.LIMIT)


def _budget_s(sampling: Sampling) -> float:
    """Return the seconds of an interleaved cell's samples and of warming up; nothing sets it up in them."""
    return (1 + WARM_UP_SHARE) * sampling.budget_s


def _of_other_workloads(budget: CellEstimate, earlier: Sequence[Earlier]) -> CellEstimate:
    """Return what a variant usually took, its compilation and checks included; the budget at the least."""
    took_s = [one.duration_s for one in earlier if one.status == Status.OK]
    if not took_s:
        return budget
    return CellEstimate(max(budget.seconds, statistics.median(took_s)), EstimateBasis.OTHER_WORKLOADS)


def _of_other_variants(cell: Cell, earlier: Sequence[Earlier], limits: Limits) -> CellEstimate | None:
    """Return the longest time of other variants on the same workload; None where there are none."""
    alike = [one for one in earlier if _same(cell, one.cell, "workload")]
    if not alike:
        return None
    longest_s = max(one.duration_s for one in alike)
    return CellEstimate(min(longest_s, limits.timeout_s), EstimateBasis.OTHER_VARIANTS)


RANKED = list(EstimateBasis)


def _source(cell: Cell, earlier: Earlier) -> int:
    """Return how far the earlier cell is from this one, as a place in `RANKED`."""
    if earlier.cell.id == cell.id:
        return RANKED.index(EstimateBasis.SAME_HOST)
    if not _agree(cell, earlier.cell):
        return RANKED.index(EstimateBasis.OTHER_FIELDS)
    return RANKED.index(EstimateBasis.SAME_HOST if earlier.same_host else EstimateBasis.OTHER_HOST)


def _agree(cell: Cell, earlier: Cell) -> bool:
    """Return whether both have the same techniques, and the same values in every field that both have."""
    if not all(_same(cell, earlier, part) for part in ("workload", "settings")):
        return False
    return bool(cell.config.get("techniques", []) == earlier.config.get("techniques", []))


def _same(cell: Cell, earlier: Cell, part: str) -> bool:
    ours, theirs = cell.config[part], earlier.config.get(part, {})
    return all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys() if name != "source")


class Countdown:
    """What is left of a sweep, corrected by its own pace once some of it is over."""

    def __init__(self, estimate: SweepEstimate, began_s: float) -> None:
        self._left = dict(estimate.cells)
        self._workers = estimate.workers
        self._began_s = began_s
        self._over_s = 0.0  # predicted, of the cells that have ended
        self._pace = 1.0  # real seconds per predicted second
        self._unknown_took_s: list[float] = []

    def finish(self, cell: str, took_s: float, now_s: float) -> None:
        """Note that `cell` has ended, after `took_s` seconds, at `now_s` on the sweep's clock."""
        ended = self._left.pop(cell, None)
        if ended is None:
            return
        if ended.basis == EstimateBasis.LIMIT:
            self._unknown_took_s.append(took_s)
            return
        self._over_s += ended.seconds
        real_s = (now_s - self._began_s) * self._workers - sum(self._unknown_took_s)
        if max(self._over_s, real_s) >= PACE_AFTER_S:
            self._pace = real_s / self._over_s

    @property
    def left_s(self) -> float | None:
        """Return the seconds left; None while cells are left of which nothing is known yet."""
        unknown = [cell for cell in self._left.values() if cell.basis == EstimateBasis.LIMIT]
        if unknown and not self._unknown_took_s:
            return None
        known_s = sum(cell.seconds for cell in self._left.values() if cell.basis != EstimateBasis.LIMIT)
        unknown_s = len(unknown) * statistics.mean(self._unknown_took_s) if unknown else 0.0
        return (known_s * self._pace + unknown_s) / self._workers


def about(seconds: float, unknown: int) -> str:
    """Return an estimate in words; it is a lower bound where it lacks `unknown` cells."""
    return f"{'at least' if unknown else 'about'} {as_time(seconds)}"


def as_time(seconds: float) -> str:
    """Return a duration in words: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
