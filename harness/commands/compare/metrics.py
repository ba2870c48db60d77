"""The metrics of one cell in two runs: each one's change, and that of its ratio to the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.claims.paired_ratio import AGAIN
from harness.commands.compare.change import ROUNDING, Change, welch
from harness.commands.compare.directions import HIGHER, LOWER, NEITHER, Directions
from harness.records import Measurement, Origin, Record, Status, measurement
from harness.statistics import ratio

Repeats = Mapping[int, Record]
"""The records of one cell by repeat, each a process of its own."""

DETERMINISTIC = (Origin.CALCULATED, Origin.SIMULATED, Origin.PUBLISHED)
"""Origins of which a second process would give the same value again."""


class MetricChange(NamedTuple):
    """One metric of one workload and variant in both runs. Values are in the base unit `unit`.

    `effect_a`, `effect_b`: the metric over the baseline's in the same processes; `effect_change` is B's over
    A's. `not_compared`: why there is no ratio, or "".
    """

    suite: str
    workload: str
    optimization: str
    metric: str
    method: str
    unit: str
    origin: str
    better: str  # lower | higher | neither
    is_declared: bool  # whether the suite's report compares this metric
    a: float
    b: float
    change: Change
    effect_a: float | None = None
    effect_b: float | None = None
    effect_change: Change | None = None
    machines: tuple[str, str] = ("", "")
    not_compared: str = ""

    @property
    def sign(self) -> int:
        """Return 1 where more is worse, -1 where less is worse, 0 where neither is."""
        return {LOWER: 1, HIGHER: -1, NEITHER: 0}[self.better]

    @property
    def is_exact(self) -> bool:
        """Return whether both runs' values repeat exactly."""
        return self.change.exact and not self.not_compared

    @property
    def is_judged(self) -> bool:
        """Return whether it is tested for a failure; the baseline's second run is not, for it is noise."""
        if self.optimization.endswith(AGAIN) or not self.sign or self.not_compared:
            return False
        return self.change.is_decidable and not self.change.exact

    def p_worse(self, margin: float) -> float:
        """Return the p-value of "not worse by more than `margin`", a share of A's value.

        A variant counts as worse only where its ratio to the baseline of its own run is worse by as much,
        too. A slower host alone does not change that.
        """
        if not self.sign or self.not_compared:
            return 1.0
        log_margin = math.log1p(margin) if self.sign > 0 else -_log(1 - margin)
        changes = [self.change] + ([self.effect_change] if self.effect_change else [])
        return max(one.p_beyond(log_margin, self.sign) for one in changes)


def changes(
    cells: tuple[Repeats, Repeats],
    baselines: tuple[Repeats, Repeats] | None,
    of: Directions,
    machines: tuple[str, str],
) -> Iterator[MetricChange]:
    """Yield the change of each metric that both runs have of one cell; only repeats that ended ok count.

    `baselines`: the repeats of the same workload's baseline, None for the baseline itself.
    """
    ours = [_ended_ok(repeats) for repeats in cells]
    theirs = [_ended_ok(repeats) for repeats in baselines or ()]
    for key, one in _measurements(ours[0]).items():
        other = _measurements(ours[1]).get(key)
        if other is None or of.is_series(one.metric):
            continue
        cell = next(iter(ours[0].values())).cell
        better, is_declared = of.of(one)
        made = MetricChange(
            cell.suite, cell.workload, cell.optimization, *key, one.unit, other.origin, better, is_declared,
            math.nan, math.nan, Change(math.nan), machines=machines,
        )  # fmt: skip
        if (one.unit, one.origin) != (other.unit, other.origin):
            yield made._replace(
                not_compared=f"{one.unit} {one.origin} in A, {other.unit} {other.origin} in B"
            )
            continue
        samples, base = ([_samples(side, key) for side in sides] for sides in (ours, theirs))
        yield _compared(made, samples, base, key in of.draws)


def _compared(
    made: MetricChange,
    samples: Sequence[Mapping[int, Sequence[float]]],
    base: Sequence[Mapping[int, Sequence[float]]],
    draws: bool,
) -> MetricChange:
    if not all(0 < value < math.inf for side in samples for taken in side.values() for value in taken):
        return _without_ratio(made, samples)
    logs = [[_location(taken, draws) for taken in side.values()] for side in samples]
    change = _exact(samples, made.origin) or welch(*logs)
    a, b = (math.exp(math.fsum(side) / len(side)) for side in logs)
    made = made._replace(a=a, b=b, change=change)
    if not base or change.exact:
        return made
    effects = [_effects(*sides, draws) for sides in zip(samples, base, strict=True)]
    if not all(effects):
        return made
    effect_a, effect_b = (math.exp(math.fsum(side) / len(side)) for side in effects)
    return made._replace(effect_a=effect_a, effect_b=effect_b, effect_change=welch(*effects))


def _without_ratio(made: MetricChange, samples: Sequence[Mapping[int, Sequence[float]]]) -> MetricChange:
    """Return the metric with its values: where both are the same there is no change, else no ratio."""
    if samples[0] == samples[1]:
        value = next(iter(samples[0].values()))[0]
        return made._replace(a=value, b=value, change=Change(0.0, exact=True))
    return made._replace(not_compared="a sample is not a positive number")


def _exact(samples: Sequence[Mapping[int, Sequence[float]]], origin: str) -> Change | None:
    """Return the change of values that repeat exactly; None where they do not, or where too few show it."""
    counts = len(samples[0]), len(samples[1])
    if samples[0] == samples[1]:
        return Change(0.0, processes=counts, exact=True)
    sides = [{tuple(taken) for taken in side.values()} for side in samples]
    if any(len(side) > 1 for side in sides) or (min(counts) < 3 and origin not in DETERMINISTIC):
        return None
    (a,), (b,) = sides
    difference = _location(b, True) - _location(a, True)
    return Change(0.0 if abs(difference) < ROUNDING else difference, processes=counts, exact=True)


def _location(taken: Sequence[float], draws: bool) -> float:
    """Return the location of a process's logarithms: the one that `statistics.ratio` uses."""
    return math.log(ratio([taken], [[1.0] * len(taken)], draws).value)


def _effects(
    ours: Mapping[int, Sequence[float]], base: Mapping[int, Sequence[float]], draws: bool
) -> list[float]:
    """Return the logarithm of the ratio to the baseline, of each repeat that has both; of its rounds' ratios
    where both have as many."""
    both = [(ours[repeat], base[repeat]) for repeat in ours if repeat in base]
    if not all(0 < value < math.inf for _, theirs in both for value in theirs):
        return []
    return [
        math.log(ratio([mine], [theirs], draws).value)
        if len(mine) == len(theirs)
        else _location(mine, draws) - _location(theirs, draws)
        for mine, theirs in both
    ]


def _ended_ok(repeats: Repeats) -> dict[int, Record]:
    """Return the repeats with a result: none where one of them was wrong."""
    if any(one.status == Status.WRONG_RESULT for one in repeats.values()):
        return {}
    return {repeat: one for repeat, one in sorted(repeats.items()) if one.status == Status.OK}


def _measurements(repeats: Repeats) -> dict[tuple[str, str], Measurement]:
    found: dict[tuple[str, str], Measurement] = {}
    for record in repeats.values():
        for one in record.measurements:
            if one.samples:
                found.setdefault((one.metric, one.method), one)
    return found


def _samples(repeats: Repeats, key: tuple[str, str]) -> dict[int, tuple[float, ...]]:
    """Return the samples of a metric by repeat."""
    found = {repeat: measurement(record, *key) for repeat, record in repeats.items()}
    return {repeat: one.samples for repeat, one in found.items() if one is not None and one.samples}


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
