"""The best layout of training runs, many at once: a grid of powers of two, then the neighbours of its best.

Sizes: runs R; tries T, each of one layout for one run; layouts L of a grid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suites.limits.layout_search.layouts import GRID, LayoutGrid
from suites.limits.layout_search.run_shape import RunShape, shape_of
from suites.limits.layout_search.stack import taken
from suites.limits.layout_search.tries import (
    Indices,
    Runs,
    Tries,
    around,
    candidates,
    evaluated,
    most_replicas,
    runs_of,
    whole,
)
from suites.limits.subject import Workload
from suites.training.step_time.collectives import Floats
from suites.training.step_time.step import ParallelLayout, StepTime, step_time

RUNS_AT_ONCE = 64
"""Runs whose layouts fit into a core's cache together."""

GROWTH = 1.005
"""By how much data parallelism grows at least where a run does not finish: GPUs are found within 0.5 %."""

LEADERS = 16
"""Layouts that are tried to their end first, so that most others are known to be worse at their start."""

STEPS = (1.0, 0.5, 0.25, 1.0, 0.5, 0.25)
"""Powers of two between a layout and its neighbours, in turn."""

NEIGHBOURS = 16
"""Neighbours that are tried on fewer GPUs."""

FEWER = 0.98
"""Share of the GPUs that seem to suffice with which a neighbour begins."""

WORTHWHILE = 1.0005
"""Utilization over the best one's from which on a layout is tried further."""


class BestLayouts(NamedTuple):
    """The best layout of each run (R,) so far.

    `score`: 1 and the utilization where the run finishes in time; else the time that a step may take over
    what it takes.
    """

    score: Floats
    layout: ParallelLayout

    @property
    def utilization(self) -> Floats:
        """Return the utilization, 0 where no layout finishes in time."""
        return np.maximum(0.0, self.score - 1)


def best_layouts(given: Workload, training_flop: Floats, grid: LayoutGrid = GRID) -> BestLayouts:
    """Return the layout of each run (R,) that finishes in time with the best utilization."""
    count = len(training_flop)
    chunks = [np.arange(i, min(i + RUNS_AT_ONCE, count)) for i in range(0, count, RUNS_AT_ONCE)]
    found = [_best_of_chunk(runs_of(taken(given, one), training_flop[one]), grid) for one in chunks]
    layout = (np.concatenate(parts) for parts in zip(*(one.layout for one in found), strict=True))
    return BestLayouts(np.concatenate([one.score for one in found]), ParallelLayout(*layout))


def _best_of_chunk(runs: Runs, grid: LayoutGrid) -> BestLayouts:
    """Return the better of two searches, from the best layout with a pipeline and from that without one."""
    every = candidates(runs, grid)
    one, other = (_searched(runs, every.only(part)) for part in (every.layout.pp > 1, every.layout.pp == 1))
    layout = ParallelLayout(
        *(np.where(one.score >= other.score, *both) for both in zip(one.layout, other.layout, strict=True))
    )
    return BestLayouts(np.maximum(one.score, other.score), layout)


def _searched(runs: Runs, tries: Tries) -> BestLayouts:
    """Return the best of some tries and, step by step, of the neighbours of the best so far."""
    nothing = np.zeros(runs.fewest.shape)
    best = BestLayouts(nothing, ParallelLayout(*(nothing + 1 for _ in ParallelLayout._fields)))
    best = tried(runs, tries, best)
    for step in STEPS:
        best = improved(runs, best, step)
    return best


def tried(runs: Runs, tries: Tries, best: BestLayouts) -> BestLayouts:
    """Return the best of `best` and of each layout with as many replicas as finish in time.

    More replicas never use the peak better, so a layout is best with the fewest that finish, and one that is
    no better than the best with too few of them is given up.
    """
    _, used = evaluated(runs, tries)
    first, rest = _leaders(tries, used, LEADERS)
    best = _grown(runs, tries.only(first), best)
    return _grown(runs, tries.only(rest[_better(used, best, tries)[rest]]), best)


def improved(runs: Runs, best: BestLayouts, step: float) -> BestLayouts:
    """Return the best of `best` and of its neighbours, of which the fastest on as many GPUs are tried."""
    tries = around(runs, best.layout, step)
    step_s, used = evaluated(runs, tries)
    can_finish = (step_s <= runs.budget_s[tries.run]) | (tries.layout.dp < most_replicas(runs, tries))
    ahead = np.flatnonzero(_better(used, best, tries) & can_finish)
    first, _ = _leaders(tries.only(ahead), used[ahead], NEIGHBOURS)
    chosen = tries.only(ahead[first])
    share = np.minimum(1.0, step_s[ahead[first]] / runs.budget_s[chosen.run])
    return _grown(runs, chosen.with_dp(whole(FEWER * share * chosen.layout.dp, chosen.layout.ep)), best)


def _leaders(tries: Tries, used: Floats, count: int) -> tuple[Indices, Indices]:
    """Return the places of the tries that use the peak best, so many per run, and those of the others."""
    order = np.lexsort((-used, tries.run))
    leads = np.arange(len(order)) - np.searchsorted(tries.run[order], tries.run[order]) < count
    return order[leads], order[~leads]


def _better(used: Floats, best: BestLayouts, tries: Tries) -> NDArray[np.bool_]:
    return used > best.utilization[tries.run] * WORTHWHILE


def _grown(runs: Runs, tries: Tries, best: BestLayouts) -> BestLayouts:
    """Return the best of `best` and of the tries, whose replicas grow until they finish or are given up."""
    while len(tries.run):
        step_s, used = evaluated(runs, tries)
        share = runs.budget_s[tries.run] / step_s
        best = _best_of(best, tries, np.where(share >= 1, 1 + used, share))
        most = most_replicas(runs, tries)
        more = whole(tries.layout.dp * np.maximum(1 / share, GROWTH), tries.layout.ep)
        unfinished = (share < 1) & _better(used, best, tries) & (tries.layout.dp < most)
        tries = tries.with_dp(np.minimum(more, most)).only(unfinished)
    return best


def _best_of(best: BestLayouts, tries: Tries, score: Floats) -> BestLayouts:
    """Return the best of each run and of the tries for it."""
    most = best.score.copy()
    np.maximum.at(most, tries.run, score)
    winner = np.flatnonzero((score == most[tries.run]) & (score > best.score[tries.run]))
    run = tries.run[winner]
    layout = ParallelLayout(*(one.copy() for one in best.layout))
    for kept, one in zip(layout, tries.layout, strict=True):
        kept[run] = one[winner]
    return BestLayouts(most, layout)


class BestRun(NamedTuple):
    """The layout that finishes a run in time with the best utilization, which is 0 where none does."""

    shape: RunShape
    utilization: float  # of the peak, by 6 FLOP per parameter and token
    step_s: float
    gpus: float
    layout: ParallelLayout | None
    time: StepTime | None


def best_run(given: Workload, training_flop: float, grid: LayoutGrid = GRID) -> BestRun:
    """Return the best layout of one run, with its parts."""
    shape = shape_of(given, training_flop)
    best = best_layouts(given, np.array([training_flop]), grid)
    if not best.utilization[0]:
        return BestRun(shape, 0.0, float("nan"), float("nan"), None, None)
    time = step_time(given, shape.model, best.layout, shape.batch_tokens)
    return BestRun(
        shape,
        float(best.utilization[0]),
        float(time.total_s[0]),
        float(best.layout.gpus[0]),
        best.layout,
        StepTime(*np.broadcast_arrays(*time)),
    )
