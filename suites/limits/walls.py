"""Utilization by training compute; where it begins to fall, and where no layout finishes in time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suites.limits.collectives import Floats
from suites.limits.search import FINE, LayoutGrid, best_run
from suites.limits.subject import Workload

LEAST, MOST = 24.0, 33.0
"""Powers of ten of the training compute, in FLOP."""

FALLEN = 0.8
"""Share of the best utilization below which it has begun to fall."""

LOW = 0.01
"""Utilization below which a run counts as infeasible: the source speaks of low utilization."""


class Walls(NamedTuple):
    """Two training computes in FLOP, and the utilization before the first."""

    begins: float
    ends: float
    best: float


def computes(per_decade: int) -> Floats:
    """Return training computes in FLOP, evenly spaced on a logarithmic axis."""
    return np.logspace(LEAST, MOST, round((MOST - LEAST) * per_decade) + 1)


def curve(given: Workload, flop: Floats, grid: LayoutGrid = FINE) -> Floats:
    """Return the best utilization at each training compute; 0 from the first on that none finishes."""
    used = np.zeros(len(flop))
    for i, one in enumerate(flop):
        used[i] = best_run(given, float(one), grid).utilization
        if not used[i]:
            break
    return used


def walls_of(flop: Floats, used: Floats) -> Walls:
    """Return the walls of a curve; a wall beyond the curve's last point is at that point."""
    top = int(np.argmax(used))
    if not used[top]:
        return Walls(float(flop[0]), float(flop[0]), 0.0)
    return Walls(
        _falls_below(flop, used, FALLEN * used[top], top),
        _falls_below(flop, used, LOW, top),
        float(used[top]),
    )


def _falls_below(flop: Floats, used: Floats, level: float, top: int) -> float:
    """Return where the curve has last been at the level, between points on logarithmic axes."""
    above = np.flatnonzero(used >= level)
    if not above.size:
        return float(flop[0])
    last = max(int(above[-1]), top)
    if last == len(flop) - 1:
        return float(flop[-1])
    upper, lower = used[last], max(used[last + 1], LOW / 10)
    share = np.log(upper / level) / np.log(upper / lower) if upper > lower else 0.0
    return float(flop[last] * (flop[last + 1] / flop[last]) ** min(1.0, float(share)))
