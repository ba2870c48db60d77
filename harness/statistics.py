"""The ratio of two times with its interval and effect; pure, on plain numbers.

The report and the judge call it with a record's samples, the worker with the rounds taken so far.

Times are compared as logarithms of ratios within a round, so drift that both variants share cancels and
swapping the variants inverts the ratio. The samples have two levels: processes, each with its own memory
layout and luck, and rounds in each. A process's location is the interquartile mean of its log ratios, or
their mean where rounds are draws and outliers are not disturbances. The ratio is the mean over processes, and
its interval comes from the processes, which are the independent draws.

It is mean +- t(k - 1) s/sqrt(k) of the k processes' locations, which is a hierarchical bootstrap with three
closed corrections: of its variance, which is (k - 1)/k of the right one (Hesterberg 2015, "What Teachers
Should Know About the Bootstrap", section 4.2), of the rounds' noise, which it counts twice (Davison and
Hinkley 1997, "Bootstrap Methods and their Application", section 3.8), and of its normal tails.
`tests/benchmarks/coverage.py` compares both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, median
from typing import NamedTuple

CONFIDENCE = 0.95

LEAST_BAND = 0.01
"""A difference within 1 % counts as none, however quiet the machine. Sampling aims no closer."""

MOST_BAND = 0.05  # where the noise is wider than this, an interval inside it only shows that nothing is known
LEAST_WINDOW = 4  # samples in each of the two windows that decide whether a process has settled

STEADY_WITHIN = 0.01
"""A decrease from window to window by less than this is not warm-up: it is within `LEAST_BAND`."""


MOST_REPEATS = 1000
"""More repeats than this are not suggested: the difference is smaller than this machine can show."""


class Ratio(NamedTuple):
    """Our time over the base's, with its 95 % interval. Below 1, ours is faster."""

    value: float
    low: float
    high: float
    processes: int
    rounds: int  # of all processes
    basis: str = "pairs"  # pairs | exact | single | ranges: see `harness.claims.values.compare`
    left_out: int = 0  # samples of these processes that have no partner


def ratio(ours: Sequence[Sequence[float]], base: Sequence[Sequence[float]], draws: bool = False) -> Ratio:
    """Return our times over the base's; one inner sequence per process, paired round by round, in any unit.

    With one process the interval is that of its rounds: it ignores how much processes differ, and is too
    narrow by as much. With a single round of a single process it is 0 to infinity. `draws`: rounds are
    independent draws, and the mean of all is used; for one process the interval is Student's t of them. The
    result is deterministic. Raises ValueError where the samples do not pair, are missing, or are not positive
    and finite.
    """
    logs = _log_ratios(ours, base)
    locations = [fmean(one) if draws else _interquartile_mean(one) for one in logs]
    centre = fmean(locations)
    one_process = _half_width if draws else _half_width_of_rounds
    half = _half_width(locations) if len(logs) > 1 else one_process(logs[0])
    low, high = (0.0, math.inf) if math.isinf(half) else (math.exp(centre - half), math.exp(centre + half))
    return Ratio(math.exp(centre), low, high, len(logs), sum(map(len, logs)))


def effect(ratio: Ratio, noise: Ratio | None) -> str:
    """Return a variant's effect on a quantity of which less is better.

    `noise` is the ratio of the baseline to itself in the same run; its end farthest from 1, in both
    directions, is the band. pays, costs: the interval excludes 1 and the estimate lies outside the band. no
    difference: the interval lies inside the band, taken as at least `LEAST_BAND` and at most `MOST_BAND`.
    undecided: the rest, and always where no noise was measured.
    """
    if noise is None or noise.low <= 0:
        return "undecided"
    band = max(abs(math.log(noise.low)), abs(math.log(noise.high)))
    if abs(math.log(ratio.value)) > band and not ratio.low <= 1 <= ratio.high:
        return "pays" if ratio.value < 1 else "costs"
    band = min(max(band, math.log1p(LEAST_BAND)), math.log1p(MOST_BAND))
    if ratio.low > 0 and -band <= math.log(ratio.low) and math.log(ratio.high) <= band:
        return "no difference"
    return "undecided"


def effect_within(ratio: Ratio, equal_within: float) -> str:
    """Return a variant's effect where no noise is measured: a difference of `equal_within` counts as none."""
    band = math.log1p(equal_within)
    low, value, high = (
        math.log(end) if end > 0 else -math.inf for end in (ratio.low, ratio.value, ratio.high)
    )
    if -band <= low and high <= band:
        return "no difference"
    if abs(value) <= band or low < 0 < high:
        return "undecided"
    return "pays" if value < 0 else "costs"


def more_repeats(ratio: Ratio, noise: Ratio | None, equal_within: float | None = None) -> int | None:
    """Return how many more repeats would decide an undecided effect; None where that cannot be estimated.

    It is the fewest with which `effect` decides, or without `noise` `effect_within`, if the estimates and the
    spread between processes stay as they are: a mean's half-width over m processes is t(m - 1) s/sqrt(m).
    With so many about half of the sweeps decide. None for decided effects, for ratios without an interval
    over at least two processes, and beyond `MOST_REPEATS`.
    """
    compared = [ratio] if noise is None else [ratio, noise]
    if any(one.basis != "pairs" or one.processes < 2 or one.low <= 0 for one in compared):
        return None
    for more in range(MOST_REPEATS + 1 - ratio.processes):
        ours, *others = (_with_processes(one, more) for one in compared)
        if others:
            decided = effect(ours, others[0])
        else:
            decided = "undecided" if equal_within is None else effect_within(ours, equal_within)
        if decided != "undecided":
            return more or None
    return None


def _with_processes(ratio: Ratio, more: int) -> Ratio:
    """Return the ratio with the interval that more processes of the same spread would give."""
    centre, half = math.log(ratio.value), math.log(ratio.high / ratio.low) / 2
    count = ratio.processes + more
    share = student(count - 1) / student(ratio.processes - 1) * math.sqrt(ratio.processes / count)
    low, high = math.exp(centre - half * share), math.exp(centre + half * share)
    return ratio._replace(low=low, high=high, processes=count)


class BreakEven(NamedTuple):
    """After how many steps a cost that is paid once has been saved, with the ends of the 95 % interval."""

    steps: float
    low: float
    high: float


def break_even(cost_s: float, baseline_s: float, ratio: Ratio) -> BreakEven:
    """Return after how many steps `cost_s` is saved, where a step of `baseline_s` takes `ratio` of it.

    The interval is that of the ratio; the cost is one sample. Infinite where nothing is saved.
    """
    return BreakEven(*(cost_s / (baseline_s * (1 - one)) if one < 1 else math.inf for one in ratio[:3]))


def is_steady(samples: Sequence[float]) -> bool:
    """Return whether a process's time has settled, its warm-up being over by `samples` (all so far).

    The newest quarter of the samples, at least four, is compared with as many before it. Settled: neither the
    median nor the minimum, which sees a step that has only just come, has fallen by more than 1 %, or by more
    than two standard errors of the difference of two medians. The standard error is from the newest window's
    median absolute deviation alone (times 1.4826 for sigma, times sqrt(pi/2) for a median): the older window
    contains the decrease in question. An increase is drift, which pairs share. Below two windows: False.
    """
    window = max(LEAST_WINDOW, len(samples) // 4)
    if len(samples) < 2 * window:
        return False
    _refuse_not_positive(samples)
    older = [math.log(x) for x in samples[-2 * window : -window]]
    newest = [math.log(x) for x in samples[-window:]]
    deviation = median(abs(x - median(newest)) for x in newest)
    error = 1.4826 * deviation * math.sqrt(math.pi / 2 * 2 / window)
    allowed = max(math.log1p(STEADY_WITHIN), 2 * error)
    return median(older) - median(newest) <= allowed and min(older) - min(newest) <= allowed


def is_narrow(ours: Sequence[float], base: Sequence[float], target_ci_half_width: float) -> bool:
    """Return whether the interval of the rounds' ratio in one process is within `target_ci_half_width`.

    `target_ci_half_width` is relative. It decides when to stop sampling, and ignores other processes.
    """
    (logs,) = _log_ratios([ours], [base])
    return _half_width_of_rounds(logs) <= math.log1p(target_ci_half_width)


def interval_of_mean(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of at least two independent samples and its 95 % interval by Student's t."""
    centre = fmean(samples)
    half = _half_width(samples)
    return centre, centre - half, centre + half


def _log_ratios(ours: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> list[list[float]]:
    if not ours or len(ours) != len(base):
        raise ValueError(
            f"processes do not pair: {len(ours)} of ours, {len(base)} of the base; at least 1 of each"
        )
    for process, (a, b) in enumerate(zip(ours, base, strict=True)):
        if not a or len(a) != len(b):
            raise ValueError(
                f"rounds of process {process} do not pair: {len(a)} of ours, {len(b)} of the base; at least 1"
            )
        _refuse_not_positive([*a, *b])
    return [
        [math.log(x) - math.log(y) for x, y in zip(a, b, strict=True)]
        for a, b in zip(ours, base, strict=True)
    ]


def _refuse_not_positive(samples: Sequence[float]) -> None:
    for value in samples:
        if not 0 < value < math.inf:
            raise ValueError(f"a time must be positive and finite, not {value}")


def _trimmed(count: int) -> int:
    """Return how many samples the interquartile mean leaves out at each end: a quarter, rounded."""
    return (count + 1) // 4


def _interquartile_mean(values: Sequence[float]) -> float:
    cut = _trimmed(len(values))
    return fmean(sorted(values)[cut : len(values) - cut])


def _half_width(values: Sequence[float]) -> float:
    """Return a mean's interval half-width: Student's t times the standard error; infinite for one value."""
    if len(values) < 2:
        return math.inf
    centre = fmean(values)
    variance = math.fsum((x - centre) ** 2 for x in values) / (len(values) - 1)
    return student(len(values) - 1) * math.sqrt(variance / len(values))


def _half_width_of_rounds(logs: Sequence[float]) -> float:
    """Return an interquartile mean's interval half-width: Student's t times the winsorized standard error.

    Tukey and McLaughlin 1963, "Less vulnerable confidence and significance procedures for location based on a
    single sample": se = s_w n/(h sqrt(n)), h - 1 degrees of freedom, h of n values left after trimming.
    """
    count, cut = len(logs), _trimmed(len(logs))
    left = count - 2 * cut
    if left < 2:
        return math.inf
    ordered = sorted(logs)
    winsorized = [min(max(x, ordered[cut]), ordered[count - cut - 1]) for x in ordered]
    centre = fmean(winsorized)
    variance = math.fsum((x - centre) ** 2 for x in winsorized) / (count - 1)
    return student(left - 1) * math.sqrt(variance * count) / left


@lru_cache(maxsize=4096)
def student(degrees: float) -> float:
    """Return the quantile of Student's t for a two-sided interval of `CONFIDENCE`."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
