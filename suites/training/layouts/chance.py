"""How likely a layout runs: by how far what is reserved may be from what the account says.

A layout runs where its memory does, and where nothing else fails. Both are shares of published layouts, see
`PeakError`. What is likely to run is ranked by `suites.training.step_time.prediction`.
"""

from __future__ import annotations

from math import log
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from harness.question import ProgramName
from suites.training.layouts.layout import Floats, Layouts
from suites.training.layouts.room import FRAGMENTED, WITHOUT_RETRIES


class PeakError(NamedTuple):
    """Normal distribution of the logarithm of reserved over predicted bytes, and what else fails."""

    mean: float
    sd: float
    sharded: float = 1.0  # share that runs of layouts with memory to spare
    unsharded: float = 1.0  # the same, where data-parallel ranks have whole states


REPLAYED = PeakError(0.0, log(1.16 / 1.03) / 2 / 1.54)
"""Of programs whose reserved bytes nobody publishes: dry runs' allocations, replayed through torch's
allocator, need 1.03 to 1.16 times their peak, see `room.FRAGMENTED`; ten normal values span 3.08 sd."""

OF_PROGRAM: dict[ProgramName, PeakError] = {"nanotron": PeakError(-0.02, 0.095, 0.95, 0.85)}
"""Fitted to the playbook's layouts: 77 published peaks with up to 8 tensor-parallel ranks; layouts that need
less than 86 % of the room ran in 58 of 60 cases where states are sharded or nothing could be, else in 21 of
24 (by the rule of succession). tests/suites/training/layouts/test_chance.py fits these anew."""

EIGHT_RANKS = -0.1
"""And the mean of 12 nanotron layouts with 8 tensor-parallel ranks, whose sd is 0.13."""

QUANTILES = np.array([NormalDist().inv_cdf((each + 0.5) / 41) for each in range(41)])


normal = np.vectorize(NormalDist().cdf, otypes=[float])
"""Share of a standard normal below."""


def error_of(program: ProgramName) -> PeakError:
    """Return the error of a program's peaks."""
    return OF_PROGRAM.get(program, REPLAYED)


def means(program: ProgramName, layouts: Layouts) -> Floats:
    """Return the mean error of each layout's peak, as a logarithm."""
    of = np.full(len(layouts.tp), error_of(program).mean)
    return np.where(layouts.tp >= 8, EIGHT_RANKS, of) if program == "nanotron" else of


def spared(program: ProgramName, layouts: Layouts) -> Floats:
    """Return the share of layouts that run where memory is no question."""
    of = error_of(program)
    return np.where((layouts.zero == 0) & (layouts.dp > 1), of.unsharded, of.sharded)


def chance_to_run(program: ProgramName, layouts: Layouts, filled: Floats) -> Floats:
    """Return how likely each layout runs; `filled`: what it needs over the room of the allocator."""
    with np.errstate(divide="ignore"):
        free = -np.log(filled) - means(program, layouts)
    return np.asarray(spared(program, layouts) * normal(free / error_of(program).sd), dtype=float)


def chance_without_retries(program: ProgramName, layouts: Layouts, filled: Floats) -> Floats:
    """Return how likely each layout runs and its allocator never frees its cache, see `room`."""
    return chance_to_run(program, layouts, filled * WITHOUT_RETRIES / FRAGMENTED)
