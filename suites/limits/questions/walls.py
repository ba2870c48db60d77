"""Utilization by training compute; where it begins to fall, and where no layout finishes in time.

Sizes: runs R, which a stack of workloads describes; points F of a curve.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suites.limits.layout_search.layouts import GRID, LayoutGrid
from suites.limits.layout_search.search import best_layouts
from suites.limits.layout_search.stack import taken
from suites.limits.subject import Workload
from suites.training.step_time.collectives import Floats

LEAST, MOST = 24.0, 33.0
"""Powers of ten of the training compute, in FLOP."""

FALLEN = 0.8
"""Share of the best utilization below which it has begun to fall."""

LOW = 0.01
"""Utilization below which a run counts as infeasible: the source speaks of low utilization."""

TRIES = 4
"""Training computes that are tried between two points of a curve to find a wall between them."""

INSIDE = (0.15, 0.85)
"""Where one is tried between the two points, as a share of their distance on a logarithmic axis."""


class Walls(NamedTuple):
    """Two training computes in FLOP, and the utilization before the first; (R,) each."""

    begins: Floats
    ends: Floats
    best: Floats


def computes(per_decade: int) -> Floats:
    """Return training computes in FLOP, evenly spaced on a logarithmic axis."""
    return np.logspace(LEAST, MOST, round((MOST - LEAST) * per_decade) + 1)


def curves(given: Workload, count: int, flop: Floats, grid: LayoutGrid = GRID) -> Floats:
    """Return the best utilization (R, F) at each training compute; 0 from the first on that none finishes."""
    used = np.zeros((count, len(flop)))
    alive = np.arange(count)
    for i, one in enumerate(flop):
        if not len(alive):
            break
        used[alive, i] = best_layouts(taken(given, alive), np.full(len(alive), one), grid).utilization
        alive = alive[used[alive, i] > 0]
    return used


def walls_of(given: Workload, flop: Floats, used: Floats, grid: LayoutGrid = GRID) -> Walls:
    """Return the walls of curves (R, F), each searched between two points; one beyond the last is there."""
    best = used.max(axis=1)
    begins, ends = (
        _falls_below(given, flop, used, level, grid) for level in (FALLEN * best, np.full_like(best, LOW))
    )
    return Walls(begins, ends, best)


def _falls_below(given: Workload, flop: Floats, used: Floats, level: Floats, grid: LayoutGrid) -> Floats:
    """Return where utilization falls below a level (R,) after the last point that has it."""
    above = (used >= level[:, None]) & (used > 0)
    last = len(flop) - 1 - np.argmax(above[:, ::-1], axis=1)
    last[~above.any(axis=1)] = 0
    open_ = np.flatnonzero(above.any(axis=1) & (last < len(flop) - 1))
    found: Floats = flop[last]
    if not len(open_):
        return found
    low, high = flop[last[open_]], flop[last[open_] + 1]
    upper, lower = used[open_, last[open_]], used[open_, last[open_] + 1]
    for _ in range(TRIES):
        share = np.clip(shares(upper, lower, level[open_]), *INSIDE)
        middle = low * (high / low) ** share
        here = best_layouts(taken(given, open_), middle, grid).utilization
        high_enough = here >= level[open_]
        low, upper = np.where(high_enough, middle, low), np.where(high_enough, here, upper)
        high, lower = np.where(high_enough, high, middle), np.where(high_enough, lower, here)
    found[open_] = low * (high / low) ** shares(upper, lower, level[open_])
    return found


def shares(upper: Floats, lower: Floats, level: Floats) -> Floats:
    """Return at which share of their distance a line between two points on logarithmic axes is at a level.

    Halfway where the lower point is 0: there no layout finishes in time.
    """
    slope = np.log(upper / np.where(lower > 0, lower, upper))
    found: Floats = np.where(slope > 0, np.log(upper / level) / np.where(slope > 0, slope, 1.0), 0.5)
    return found
