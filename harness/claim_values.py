"""A claim's reading -> our figure: which records it speaks of, and what they say. Beneath the judge; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.paired_ratio import AGAIN, NoPairsError, compare, inverse
from harness.records import Claim, Interpretation, Measurement, Record, Status, measurement
from harness.statistics import interval_of_mean
from harness.units import human

if TYPE_CHECKING:
    from harness.statistics import Ratio

AGAINST = "against "
"""Before a condition's name: that of the variant which the reading is held against."""


class Figure(NamedTuple):
    """Ours, in the claim's unit: the median of all samples and their range, one end of that alone, or their
    mean, or a ratio, with its interval."""

    ours: float
    low: float
    high: float
    origin: str
    record: Record
    conditions: Mapping[str, str]
    told: str = ""  # beside the origin: how many samples it rests on
    warning: str = ""  # what keeps it from being taken at its face


Cells = Mapping[str, Sequence[Record]]
"""The records of one workload by variant."""


class NoFigureError(Exception):
    """There is nothing to hold the claim against; the text says why, `cell` whose record tells."""

    def __init__(self, text: str, cell: str = "") -> None:
        super().__init__(text)
        self.cell = cell


def figure_of(claim: Claim, reading: Interpretation, cells: Cells) -> Figure:
    """What the records say of the reading; raises `NoFigureError`."""
    if reading.against:
        return _speed_up(claim, reading, cells)
    return _figure(claim, reading, cells.get(reading.optimization, ()))


def _figure(claim: Claim, reading: Interpretation, records: Sequence[Record]) -> Figure:
    """The samples of all repeats together; raises `NoFigureError`."""
    usable = usable_of(reading, records)
    samples: list[float] = []
    for record in usable:
        found = measurement(record, reading.metric, reading.method)
        assert found is not None
        samples += _in_unit(claim, reading, record, found)
    if not samples or not all(math.isfinite(value) for value in samples):
        raise NoFigureError(f"{reading.metric} by {reading.method} holds no finite sample")
    worst = _worst(usable)
    ours, low, high, told = statistics.median(samples), min(samples), max(samples), ""
    if reading.at == "mean":
        if len(samples) < 2:
            raise NoFigureError(f"one sample of {reading.metric}, whose mean has no interval")
        ours, low, high = interval_of_mean(samples)
        told = f"the mean of {len(samples)} samples and its 95 % interval"
    elif reading.at != "median":
        ours = low = high = low if reading.at == "least" else high
        told = f"the {reading.at} of {_counted(len(samples), 'sample', 's')}"
    return Figure(ours, low, high, origin_of(reading, usable), worst, worst.conditions, told)


def _speed_up(claim: Claim, reading: Interpretation, cells: Cells) -> Figure:
    """The other variant's samples over the reading's own, pair by pair; raises `NoFigureError`."""
    usable = usable_of(reading, cells.get(reading.optimization, ()))
    base = usable_of(reading._replace(optimization=reading.against), cells.get(reading.against, ()))
    if claim.unit != "1":
        raise NoFigureError(f"a ratio has no unit, the claim is in {claim.unit}")
    try:
        ratio = inverse(compare(usable, base, reading.metric, reading.method, reading.at == "mean"))
    except NoPairsError as reason:
        raise NoFigureError(str(reason)) from None
    if ratio.basis in ("single", "ranges"):
        raise NoFigureError(
            f"too few repeats in which both variants have as many rounds of {reading.metric} by "
            f"{reading.method}; more repeats bring an interval"
        )
    worst = _worst(usable)
    noise = within_noise(reading, ratio.value, base, cells.get(reading.against + AGAIN, ()))
    other = {f"{AGAINST}{name}": value for name, value in _worst(base).conditions.items()}
    return Figure(
        ours=ratio.value,
        low=ratio.low,
        high=ratio.high,
        origin=origin_of(reading, [*usable, *base]),
        record=worst,
        conditions={**other, **worst.conditions},
        told=sample_summary(ratio),
        warning=f"it lies {noise}" if noise else "",
    )


def within_noise(
    reading: Interpretation, ours: float, base: Sequence[Record], again: Sequence[Record]
) -> str:
    """In words, that `base` differs by as much from itself as by the ratio `ours`; "" where it does not."""
    try:
        noise = compare(again, base, reading.metric, reading.method, reading.at == "mean")
    except NoPairsError:
        return ""
    band = max(noise.high, 1 / noise.low)
    if not 1 / band <= ours <= band:
        return ""
    return f"within this run's noise ({human(1 / band, '1', 'x')} to {human(band, '1', 'x')})"


def sample_summary(ratio: Ratio) -> str:
    """In words, what a ratio rests on."""
    return f"{_counted(ratio.processes, 'process', 'es')}, {_counted(ratio.rounds, 'round', 's')}"


def _counted(count: int, what: str, more: str) -> str:
    return f"{count} {what}{more if count != 1 else ''}"


def usable_of(reading: Interpretation, records: Sequence[Record]) -> list[Record]:
    """The records of the claim's workload that have the metric, by repeat; raises `NoFigureError`."""
    if not records:
        raise NoFigureError(f"no record of {reading.optimization} on {reading.workload}")
    others = [other for record in records if (other := _another_workload(reading, record))]
    records = [record for record in records if not _another_workload(reading, record)]
    if not records:
        raise NoFigureError(others[0])
    usable = [
        record
        for record in records
        if record.status != Status.WRONG_RESULT and measurement(record, reading.metric, reading.method)
    ]
    if not usable:
        raise NoFigureError(missing_reason(reading, records[0]))
    return sorted(usable, key=lambda record: record.cell.repeat)


def origin_of(reading: Interpretation, records: Sequence[Record]) -> str:
    """The one origin of the reading's metric in all records that have it; raises `NoFigureError`."""
    found = (measurement(record, reading.metric, reading.method) for record in records)
    origins = {one.origin for one in found if one is not None}
    if len(origins) > 1:
        raise NoFigureError(f"its repeats have different origins ({', '.join(sorted(origins))})")
    return origins.pop()


def _worst(records: Sequence[Record]) -> Record:
    return next((record for record in records if record.status != Status.OK), records[0])


def _another_workload(reading: Interpretation, record: Record) -> str:
    """In words, what makes the workload run another than the reading speaks of; "" where nothing does."""
    run = record.cell.config.get("workload", {})
    differ = [name for name, value in reading.requires.items() if name not in run or run[name] != value]
    if not differ:
        return ""
    had = ", ".join(_field(name, run[name]) if name in run else f"no {name} recorded" for name in differ)
    due = ", ".join(_field(name, reading.requires[name]) for name in differ)
    return f"{reading.workload} was run with {had}; this claim speaks of {due}"


def _field(name: str, value: Any) -> str:
    number = isinstance(value, int | float)
    return f"{name} {human(value, 'B') if number and name.endswith('_B') else value}"


def _in_unit(claim: Claim, reading: Interpretation, record: Record, found: Measurement) -> list[float]:
    """The samples in the claim's unit, divided by the reading's `per`; raises `NoFigureError`."""
    unit, divisor = found.unit, 1.0
    if reading.per:
        per = measurement(record, reading.per)
        if per is None or not per.samples:
            raise NoFigureError(f"the cell has no {reading.per} to divide by")
        divisor = statistics.median(per.samples)
        unit = (
            found.unit if per.unit == "1" else "1" if per.unit == found.unit else f"{found.unit}/{per.unit}"
        )
        if not math.isfinite(divisor) or divisor <= 0:
            raise NoFigureError(f"its {reading.per} is {divisor:g}, nothing to divide by")
    if unit != claim.unit:
        raise NoFigureError(f"{reading.metric} is recorded in {unit}, the claim is in {claim.unit}")
    return [value / divisor for value in found.samples]


def missing_reason(reading: Interpretation, record: Record) -> str:
    """In words, why the record has no figure for the reading."""
    what = f"{reading.metric} by {reading.method}"
    if record.status != Status.OK:
        reason = f" ({record.reason.strip().rstrip('.')})" if record.reason.strip() else ""
        return f"the cell ended as {record.status.replace('_', ' ')}{reason}"
    told = [text for text in record.notes if text.partition(":")[0] in (reading.metric, reading.method)]
    return f"the cell has no {what}" + (f" ({'; '.join(told).rstrip('.')})" if told else "")
