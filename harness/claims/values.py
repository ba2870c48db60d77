"""An interpretation of a claim -> our value: which records it speaks of, and what they contain. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.claims.model import Claim, Interpretation
from harness.claims.paired_ratio import AGAIN, NoPairsError, compare, inverse
from harness.records import Measurement, Origin, Record, Status, measurement
from harness.statistics import interval_of_mean
from harness.units import human

REFERENCE = "reference "
"""Prefix of the conditions of the variant that `relative_to` names: `reference precision`."""


class ClaimValue(NamedTuple):
    """Our value in the claim's unit, between two ends: a statistic of all samples, or a ratio."""

    ours: float
    low: float
    high: float
    origin: str
    record: Record
    conditions: Mapping[str, str]
    basis: str  # see `claim_model.Verdict`
    processes: int
    samples: int
    noise: tuple[float, float] | None = None  # of one side against itself, where our value lies in it


NO_INTERVAL = "too few repeats "
"""Start of the reason why values of which there are too few to have an interval are not compared."""

RecordsByVariant = Mapping[str, Sequence[Record]]
"""The records of one workload by variant."""


class NoValueError(Exception):
    """The records have no value for an interpretation; the text says why, `cell` is where it is recorded."""

    def __init__(self, text: str, cell: str = "") -> None:
        super().__init__(text)
        self.cell = cell


def value_of(
    claim: Claim, interpretation: Interpretation, cells: RecordsByVariant, points: bool = False
) -> ClaimValue:
    """Return the value that the records give the interpretation; raises `NoValueError`.

    `points`: a value with too few samples for an interval is returned as it is.
    """
    if interpretation.relative_to:
        return _speed_up(claim, interpretation, cells, points)
    return _value(claim, interpretation, cells.get(interpretation.variant, ()), points)


def _value(
    claim: Claim, interpretation: Interpretation, records: Sequence[Record], points: bool
) -> ClaimValue:
    """Return the value from the samples of all repeats together; raises `NoValueError`."""
    usable = usable_of(interpretation, records)
    samples: list[float] = []
    for record in usable:
        measured = measurement(record, interpretation.metric, interpretation.method)
        assert measured is not None
        samples += _in_unit(claim, interpretation, record, measured)
    if not samples or not all(math.isfinite(value) for value in samples):
        raise NoValueError(f"{interpretation.metric} by {interpretation.method} has no finite sample")
    worst = _worst(usable)
    ours, low, high, basis = statistics.median(samples), min(samples), max(samples), "samples"
    if interpretation.stat != "median":
        basis = interpretation.stat
    if basis == "mean" and not (points and len(samples) == 1):
        if len(samples) < 2:
            raise NoValueError(f"one sample of {interpretation.metric}, whose mean has no interval")
        ours, low, high = interval_of_mean(samples)
    elif basis in ("min", "max"):
        ours = low = high = low if basis == "min" else high
    origin = origin_of(interpretation, usable)
    return ClaimValue(ours, low, high, origin, worst, worst.conditions, basis, len(usable), len(samples))


def _speed_up(
    claim: Claim, interpretation: Interpretation, cells: RecordsByVariant, points: bool
) -> ClaimValue:
    """Return the reference variant's samples over the variant's own, pair by pair; raises `NoValueError`.

    The noise is that of the side that ran twice, of both the reference's.
    """
    reference = interpretation.relative_to
    usable = usable_of(interpretation, cells.get(interpretation.variant, ()))
    base = usable_of(interpretation._replace(variant=reference), cells.get(reference, ()))
    if claim.unit != "1":
        raise NoValueError(f"a ratio has no unit, the claim is in {claim.unit}")
    draws = interpretation.stat == "mean"
    try:
        ratio = inverse(compare(usable, base, interpretation.metric, interpretation.method, draws))
    except NoPairsError as reason:
        raise NoValueError(str(reason)) from None
    origin = origin_of(interpretation, [*usable, *base])
    without = ratio.basis == "ranges" or (ratio.basis == "single" and origin != Origin.CALCULATED)
    if without and not points:
        by = f" by {interpretation.method}" if interpretation.method else ""
        raise NoValueError(
            f"{NO_INTERVAL}in which both variants have as many rounds of {interpretation.metric}{by}; more "
            "repeats give an interval"
        )
    twice, first = reference, base
    if interpretation.variant + AGAIN in cells and reference + AGAIN not in cells:
        twice, first = interpretation.variant, usable
    worst = _worst(usable)
    other = {f"{REFERENCE}{name}": value for name, value in _worst(base).conditions.items()}
    return ClaimValue(
        ours=ratio.value,
        low=ratio.low,
        high=ratio.high,
        origin=origin,
        record=worst,
        conditions={**other, **worst.conditions},
        basis=ratio.basis,
        processes=ratio.processes,
        samples=ratio.rounds,
        noise=noise_around(interpretation, ratio.value, first, cells.get(twice + AGAIN, ())),
    )


def noise_around(
    interpretation: Interpretation, ours: float, base: Sequence[Record], again: Sequence[Record]
) -> tuple[float, float] | None:
    """Return the band in which `base` differs from itself if the ratio `ours` lies in it, else None."""
    draws = interpretation.stat == "mean"
    try:
        noise = compare(again, base, interpretation.metric, interpretation.method, draws)
    except NoPairsError:
        return None
    band = max(noise.high, 1 / noise.low)
    return (1 / band, band) if 1 / band <= ours <= band else None


def usable_of(interpretation: Interpretation, records: Sequence[Record]) -> list[Record]:
    """Return the records of the claim's workload that have the metric, by repeat.

    Raises `NoValueError` where none has it, or one process computed something wrong.
    """
    if not records:
        raise NoValueError(f"no record of {interpretation.variant} on {interpretation.workload}")
    others = [other for record in records if (other := _another_workload(interpretation, record))]
    records = [record for record in records if not _another_workload(interpretation, record)]
    if not records:
        raise NoValueError(others[0])
    if wrong := [record for record in records if record.status == Status.WRONG_RESULT]:
        raise NoValueError(missing_reason(interpretation, wrong[0]))
    usable = [one for one in records if measurement(one, interpretation.metric, interpretation.method)]
    if not usable:
        raise NoValueError(missing_reason(interpretation, records[0]))
    return sorted(usable, key=lambda record: record.cell.repeat)


def origin_of(interpretation: Interpretation, records: Sequence[Record]) -> str:
    """Return the one origin of the metric in all records that have it; raises `NoValueError`."""
    measurements = (measurement(record, interpretation.metric, interpretation.method) for record in records)
    origins = {one.origin for one in measurements if one is not None}
    if len(origins) > 1:
        raise NoValueError(f"its repeats have different origins ({', '.join(sorted(origins))})")
    return origins.pop()


def _worst(records: Sequence[Record]) -> Record:
    return next((record for record in records if record.status != Status.OK), records[0])


def _another_workload(interpretation: Interpretation, record: Record) -> str:
    """Return what makes the workload that was run differ from the claim's; "" where nothing does."""
    run = record.cell.config.get("workload", {})
    known = {name: value for name, value in interpretation.defaults.items() if name in run}
    expected = {**interpretation.requires, **known}
    differ = [name for name, value in expected.items() if name not in run or run[name] != value]
    if not differ:
        return ""
    had = ", ".join(_field(name, run[name]) if name in run else f"no {name} recorded" for name in differ)
    claimed = ", ".join(_field(name, expected[name]) for name in differ)
    return f"{interpretation.workload} was run with {had}; this claim is about {claimed}"


def _field(name: str, value: Any) -> str:
    number = isinstance(value, int | float)
    return f"{name} {human(value, 'B') if number and name.endswith('_B') else value}"


def _in_unit(
    claim: Claim, interpretation: Interpretation, record: Record, measured: Measurement
) -> list[float]:
    """Return the samples in the claim's unit, divided by the metric `divide_by`; raises `NoValueError`."""
    unit, divisor = measured.unit, 1.0
    if interpretation.divide_by:
        per = measurement(record, interpretation.divide_by)
        if per is None or not per.samples:
            raise NoValueError(f"the cell has no {interpretation.divide_by} to divide by")
        divisor = statistics.median(per.samples)
        unit = (
            measured.unit
            if per.unit == "1"
            else "1"
            if per.unit == measured.unit
            else f"{measured.unit}/{per.unit}"
        )
        if not math.isfinite(divisor) or divisor <= 0:
            raise NoValueError(f"its {interpretation.divide_by} is {divisor:g}; nothing can be divided by it")
    if unit != claim.unit:
        raise NoValueError(f"{interpretation.metric} is recorded in {unit}, the claim is in {claim.unit}")
    return [value / divisor for value in measured.samples]


def missing_reason(interpretation: Interpretation, record: Record) -> str:
    """Return why the record has no value for the interpretation."""
    metric, method = interpretation.metric, interpretation.method
    if record.status != Status.OK:
        reason = f" ({record.reason.strip().rstrip('.')})" if record.reason.strip() else ""
        return f"the cell ended as {record.status.replace('_', ' ')}{reason}"
    notes = [text for text in record.notes if text.partition(":")[0] in (metric, method)]
    return f"the cell has no {metric} by {method}" + (f" ({'; '.join(notes).rstrip('.')})" if notes else "")
