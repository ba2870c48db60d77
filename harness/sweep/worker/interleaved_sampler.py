"""Sample several things in interleaved rounds: each once per round, in random order.

Rounds continue until the ratios are known, or without a budget for a given number of rounds. Interleaving
keeps drift out of the ratios: what slows one slows its neighbours of the same round. Between worker and
statistics; the clock is injected, so that a test needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from harness.records import Sampling
from harness.statistics import is_narrow, is_steady

WARM_UP_SHARE = 1.0
"""Warm-up budget relative to the sampling budget; after it sampling begins whether times have settled or
not.
"""


class Sample(NamedTuple):
    """One turn of one taker."""

    taker: int
    value: float
    warm_up: bool


class Rounds:
    """Takes the samples on iteration and yields each at once; the first taker is the baseline.

    A taker does its work once and returns a positive value, in any unit. Afterwards `settled` states whether
    every taker's values had settled before the first counted round, `narrow` whether every ratio to the
    baseline is known within the requested half-width, and `warm_ups` and `taken` the numbers of rounds.
    """

    def __init__(
        self,
        takers: Sequence[Callable[[], float]],
        sampling: Sampling,
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        self._takers = takers
        self._sampling = sampling
        self._clock = clock
        self._random = random
        self._budget_s = sampling.budget_s * len(takers)
        self.settled = self.narrow = False
        self.warm_ups = self.taken = 0

    def __iter__(self) -> Iterator[Sample]:
        begin_s, seen = self._clock(), [list[float]() for _ in self._takers]
        while not self.settled and self._clock() - begin_s < WARM_UP_SHARE * self._budget_s:
            yield from self._round(seen, warm_up=True)
            self.warm_ups += 1
            self.settled = all(is_steady(values) for values in seen)
        begin_s, seen = self._clock(), [list[float]() for _ in self._takers]
        while self.taken < self._sampling.rounds or not (
            self.narrow or self._clock() - begin_s >= self._budget_s
        ):
            yield from self._round(seen, warm_up=False)
            self.taken += 1
            base, *others = seen
            self.narrow = all(is_narrow(ours, base, self._sampling.target_ci_half_width) for ours in others)

    def _round(self, seen: list[list[float]], warm_up: bool) -> Iterator[Sample]:
        for taker in self._random.sample(range(len(self._takers)), len(self._takers)):
            value = self._takers[taker]()
            seen[taker].append(value)
            yield Sample(taker, value, warm_up)
