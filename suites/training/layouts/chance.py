"""How likely a layout runs: by how far what is reserved may be from what the account says.

How far that is depends on the kind of question; whoever asks gives it (`PeakError.of`).

A layout runs where its memory does, and where nothing else fails. Both are shares of published layouts, see
`PeakError`. What is likely to run is ranked by `suites.training.step_time.prediction`.
"""

from __future__ import annotations

from math import log
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np

from harness.answer import Interval
from harness.question import ProgramName
from suites.training.layouts.layout import Floats, Layouts
from suites.training.layouts.room import FRAGMENTED, WITHOUT_RETRIES


class PeakError(NamedTuple):
    """Logarithm of reserved over predicted bytes, and what else fails.

    Normal on either side of its middle, with a standard deviation of each side.
    """

    mean: float
    below: float
    above: float
    sharded: float = 1.0  # share that runs of layouts with memory to spare
    unsharded: float = 1.0  # the same, where data-parallel ranks have whole states

    @classmethod
    def of(cls, ratios: Interval) -> Self:
        """Return the error that has a 90 % interval of published over predicted bytes.

        Neither side is narrower than what fragmentation alone does, see `REPLAYED`.
        """
        below, above = log(ratios.likely / ratios.low), log(ratios.high / ratios.likely)
        sides = (max(side / NORMAL_90, FRAGMENTATION_SD) for side in (below, above))
        return cls(log(ratios.likely), *sides)


NORMAL_90 = 1.645
"""Standard deviations between the middle and either end of a 90 % interval of a normal distribution."""

FRAGMENTATION_SD = log(1.16 / 1.03) / 2 / 1.54
REPLAYED = PeakError(0.0, FRAGMENTATION_SD, FRAGMENTATION_SD)
"""Of programs whose reserved bytes nobody publishes: dry runs' allocations, replayed through torch's
allocator, need 1.03 to 1.16 times their peak, see `room.FRAGMENTED`; ten normal values span 3.08 sd."""

OF_PROGRAM: dict[ProgramName, PeakError] = {"nanotron": PeakError(-0.02, 0.095, 0.095, 0.95, 0.85)}
"""Fitted to the playbook's layouts: 77 published peaks with up to 8 tensor-parallel ranks; layouts that need
less than 86 % of the room ran in 58 of 60 cases where states are sharded or nothing could be, else in 21 of
24 (by the rule of succession). tests/suites/training/layouts/test_chance.py fits these anew."""

EIGHT_RANKS = PeakError(-0.1, 0.13, 0.13)
"""And of 12 of these layouts, which have 8 tensor-parallel ranks."""

QUANTILES = np.array([NormalDist().inv_cdf((each + 0.5) / 41) for each in range(41)])


normal = np.vectorize(NormalDist().cdf, otypes=[float])
"""Share of a standard normal below."""


class PeakErrors(NamedTuple):
    """The error of each layout's peak, as arrays; see `PeakError`."""

    mean: Floats
    below: Floats
    above: Floats

    def at(self, quantile: float) -> Floats:
        """Return the logarithms so many standard deviations from the middles."""
        return self.mean + quantile * (self.below if quantile < 0 else self.above)


def errors_of(program: ProgramName, layouts: Layouts, error: PeakError = REPLAYED) -> PeakErrors:
    """Return the error of each layout's peak; `error`: of programs whose own was not fitted."""
    of, eight = OF_PROGRAM.get(program, error), np.full(len(layouts.tp), False)
    if program == "nanotron":
        eight = layouts.tp >= 8
    return PeakErrors(*(np.where(eight, EIGHT_RANKS[at], of[at]) for at in range(3)))


def spared(program: ProgramName, layouts: Layouts) -> Floats:
    """Return the share of layouts that run where memory is no question."""
    of = OF_PROGRAM.get(program, REPLAYED)
    return np.where((layouts.zero == 0) & (layouts.dp > 1), of.unsharded, of.sharded)


def chance_to_run(
    program: ProgramName, layouts: Layouts, filled: Floats, error: PeakError = REPLAYED
) -> Floats:
    """Return how likely each layout runs; `filled`: what it needs over the room of the allocator."""
    errors = errors_of(program, layouts, error)
    with np.errstate(divide="ignore"):
        free = -np.log(filled) - errors.mean
    side = np.where(free < 0, errors.below, errors.above)
    return np.asarray(spared(program, layouts) * normal(free / side), dtype=float)


def chance_without_retries(
    program: ProgramName, layouts: Layouts, filled: Floats, error: PeakError = REPLAYED
) -> Floats:
    """Return how likely each layout runs and its allocator never frees its cache, see `room`."""
    return chance_to_run(program, layouts, filled * WITHOUT_RETRIES / FRAGMENTED, error)
