"""How much a metric changed between two runs, and whether that is more than noise; pure, on plain numbers.

A process has its own memory layout and luck, so processes of a run are the independent draws, and rounds
within one are not. Each counts once, by the location of the logarithms of its samples. Processes of two runs
do not pair: the interval of the ratio is Welch's, with Satterthwaite's degrees of freedom (Welch 1947, "The
generalization of Student's problem when several different population variances are involved").

Many metrics are tested at once. Holm's method (1979, "A simple sequentially rejective multiple test
procedure") bounds the probability of any false finding among all of them, whichever hypotheses are true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import NamedTuple

from harness.records import Measurement, Origin
from harness.statistics import student

LEAST_PROCESSES = 3  # with fewer processes in either run, a change that could be noise is undecided

FALSE_FAILURES = 0.01
"""Probability, at most, that a comparison fails although no metric is worse than the margin."""

FALSE_FINDINGS = 0.05  # probability, at most, that a comparison calls any metric changed although none is

DECLARED_SHARE = 0.8
"""Share of a family-wise level for metrics that the suite's report compares. The rest is for all others,
which are many and would otherwise cost most of the power."""

ROUNDING = 1e-9  # relative difference of two exact values that is rounding


class Change(NamedTuple):
    """The logarithm of a ratio, B over A."""

    log_ratio: float
    error: float = 0.0  # standard
    degrees: float = 0.0  # of freedom of that; 0: no interval
    processes: tuple[int, int] = (1, 1)
    exact: bool = False  # both values repeat exactly, so that any difference is one

    @property
    def ratio(self) -> float:
        """Return B over A."""
        return _exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the ends of the 95 % interval of the ratio; None where there is none to give."""
        if self.exact or self.degrees <= 0:
            return None
        half = student(self.degrees) * self.error
        return _exp(self.log_ratio - half), _exp(self.log_ratio + half)

    @property
    def is_decidable(self) -> bool:
        """Return whether a difference can be distinguished from noise."""
        return self.exact or (min(self.processes) >= LEAST_PROCESSES and self.degrees > 0)

    @property
    def beyond_noise(self) -> float:
        """Return the logarithm of the interval's end that is nearer to 1; 0 where the interval contains 1."""
        ends = self.interval or ((self.ratio, self.ratio) if self.exact else (0.0, math.inf))
        if ends[0] <= 1 <= ends[1]:
            return 0.0
        return min(abs(math.log(end)) if 0 < end < math.inf else math.inf for end in ends)

    def p_different(self) -> float:
        """Return the p-value of "the ratio is 1", two-sided; 1 where nothing can be decided."""
        return min(1.0, 2 * self.p_beyond(0.0, 1 if self.log_ratio > 0 else -1))

    def p_beyond(self, log_margin: float, sign: int) -> float:
        """Return the p-value of "the ratio is not beyond the margin" upwards (`sign` 1) or downwards (-1)."""
        excess = sign * self.log_ratio - log_margin
        if not self.is_decidable or excess <= ROUNDING:
            return 1.0
        from scipy.special import stdtr

        return 0.0 if self.error == 0 else float(stdtr(self.degrees, -excess / self.error))


def welch(a: Sequence[float], b: Sequence[float]) -> Change:
    """Return the change from the processes of A to those of B, each by the location of its logarithms."""
    difference = fmean(b) - fmean(a)
    counts = len(a), len(b)
    if min(counts) < 2:
        return Change(difference, processes=counts)
    parts = [variance(side) / len(side) for side in (a, b)]
    total = sum(parts)
    if total == 0:
        return Change(difference, 0.0, min(counts) - 1, counts)
    below = sum((part / total) ** 2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return Change(difference, math.sqrt(total), 1 / below, counts)


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Return which hypotheses Holm's method rejects at the family-wise `level`."""
    rejected = [False] * len(p_values)
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[at] * (len(p_values) - rank) > level:
            break
        rejected[at] = True
    return rejected


def significant(p_values: Sequence[float], declared: Sequence[bool], level: float) -> list[bool]:
    """Return which hypotheses are rejected, in two families that share the family-wise `level`.

    `declared`: whether the suite's report compares the metric. A family without a member leaves its share to
    the other one.
    """
    several = len({*declared}) > 1
    rejected = [False] * len(p_values)
    for family, share in ((True, DECLARED_SHARE), (False, 1 - DECLARED_SHARE)):
        members = [i for i, one in enumerate(declared) if one == family]
        found = holm([p_values[i] for i in members], level * share if several else level)
        for i, is_rejected in zip(members, found, strict=True):
            rejected[i] = is_rejected
    return rejected


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


JUDGED_BY_UNIT = (Origin.MEASURED, Origin.EMULATED, Origin.SIMULATED)
"""Origins whose unit decides. A calculated metric counts only where the report compares it."""

LOWER, HIGHER, NEITHER = "lower", "higher", "neither"

PEAK_MEMORY = "peak_memory"  # the metric that reports show with each training step


class Directions(NamedTuple):
    """What one suite's report declares; metrics by (metric, method)."""

    better: Mapping[tuple[str, str], str] = {}
    draws: frozenset[tuple[str, str]] = frozenset()  # whose rounds are independent draws: their mean counts
    shown: frozenset[str] = frozenset()  # metrics that are compared by some method, or shown with those
    series: tuple[str, ...] = ()  # metrics whose samples are points of a course, and no repetitions

    def of(self, one: Measurement) -> tuple[str, bool]:
        """Return lower, higher or neither, and whether the report compares this metric itself.

        Metrics that a report neither compares nor shows with those have no direction. Without a report all
        have that of their unit.
        """
        declared = self.better.get((one.metric, one.method))
        if declared is not None:
            return declared, declared != NEITHER
        if one.origin not in JUDGED_BY_UNIT or (self.better and one.metric not in self.shown):
            return NEITHER, False
        from harness.report.report_data import BETTER

        return BETTER.get(one.unit, HIGHER), False

    def is_series(self, metric: str) -> bool:
        """Return whether the samples of a metric are not compared: a course over time, or of a warm-up."""
        return metric.endswith("/warm_up") or any(
            metric == name or metric.startswith(f"{name}/") for name in self.series
        )


def directions(suite: str) -> Directions:
    """Return what conf/report/<suite>.yaml declares; raises ConfigError where that file has a mistake."""
    from harness.report.spec import EffectsBlock, OwnFigureBlock, PairedBlock, load_spec

    blocks = load_spec(suite).blocks
    paired = [one for one in blocks if isinstance(one, PairedBlock)]
    effects = [one for one in blocks if isinstance(one, EffectsBlock)]
    figures = [one for one in blocks if isinstance(one, OwnFigureBlock)]
    shown = {one.metric for one in paired} | {name for one in effects for name in one.extra_metrics}
    return Directions(
        {(one.metric, one.method): one.better for one in reversed(paired)},  # the first of a metric counts
        frozenset((one.metric, one.method) for one in paired if one.draws),
        frozenset(shown | {PEAK_MEMORY for one in effects if one.training}),
        tuple(dict.fromkeys(name for one in figures for name in one.over_time)),
    )
