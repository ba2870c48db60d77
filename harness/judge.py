"""(claims, records) -> verdicts: each reading of each claim held against what was recorded. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.records import (
    Claim,
    ClaimReading,
    Measurement,
    Origin,
    Record,
    Status,
    Verdict,
    measurement,
)
from harness.report.units import human

DEVICE = "device"
"""The condition by which a claim says that it is about hardware."""


class Figure(NamedTuple):
    """Ours: the median of all samples and their range, in the claim's unit."""

    ours: float
    low: float
    high: float
    origin: str
    record: Record


class NoFigureError(Exception):
    """There is nothing to hold the claim against; the text says why."""


def judge(claims: Iterable[Claim], records: Sequence[Record]) -> list[Verdict]:
    """One verdict for each reading of each claim, in the order of the claims."""
    cells: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        cell = record.cell
        cells.setdefault((cell.suite, cell.workload, cell.optimization), []).append(record)
    return [
        _verdict(claim, reading, cells.get((claim.suite, reading.workload, reading.optimization), []))
        for claim in claims
        for reading in claim.readings
    ]


def outcome(claim: Claim, low: float, high: float) -> str:
    """Where the interval from `low` to `high` lies against what counts as the claim's figure."""
    floor = -math.inf if claim.relation == "at_most" else claim.value * (1 - claim.tolerance)
    ceiling = math.inf if claim.relation == "at_least" else claim.value * (1 + claim.tolerance)
    if floor <= low and high <= ceiling:
        return "holds"
    if low > ceiling:
        return "exceeds"
    if high < floor:
        return "falls short"
    return "undecided"


def differences(
    stated: Mapping[str, str], found: Mapping[str, str], origin: str, status: str = "ok"
) -> list[str]:
    """In words, what keeps a figure from standing under the conditions a claim states.

    A stated condition may allow several values, apart by ` | `. A claim that states a `device` is about
    hardware: only a figure measured on that kind of device meets it.
    """
    differ = []
    if DEVICE in stated and origin != Origin.MEASURED:
        differ.append(f"{origin}, not measured")
    for name, value in stated.items():
        allowed = value.split(" | ")
        if name not in found:
            differ.append(f"{name} not recorded, the claim has {' or '.join(allowed)}")
        elif found[name] not in allowed:
            differ.append(f"{name} {found[name]}, the claim has {' or '.join(allowed)}")
    if status != Status.OK:
        differ.append(f"the cell ended as {status.replace('_', ' ')}")
    return differ


def _verdict(claim: Claim, reading: ClaimReading, records: Sequence[Record]) -> Verdict:
    try:
        figure = _figure(claim, reading, records)
    except NoFigureError as reason:
        cell = records[0].cell.id if records else ""
        sentence = f"No figure for “{reading.name}”: {reason}."
        return Verdict(
            claim.id,
            reading.name,
            "unavailable",
            "",
            None,
            None,
            None,
            None,
            claim.unit,
            "",
            cell,
            (),
            sentence,
        )
    differ = differences(claim.conditions, figure.record.conditions, figure.origin, figure.record.status)
    found = outcome(claim, figure.low, figure.high)
    return Verdict(
        claim=claim.id,
        reading=reading.name,
        outcome=found,
        where="elsewhere" if differ else "as stated",
        ours=figure.ours,
        low=figure.low,
        high=figure.high,
        ratio=figure.ours / claim.value,
        unit=claim.unit,
        origin=figure.origin,
        cell=figure.record.cell.id,
        differs=tuple(differ),
        sentence=_sentence(claim, reading, figure, found),
    )


def _figure(claim: Claim, reading: ClaimReading, records: Sequence[Record]) -> Figure:
    """The samples of all repeats together; raises `NoFigureError`."""
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
        raise NoFigureError(_why_not(reading, records[0]))
    usable.sort(key=lambda record: record.cell.repeat)
    samples: list[float] = []
    origins = set()
    for record in usable:
        found = measurement(record, reading.metric, reading.method)
        assert found is not None
        samples += _in_unit(claim, reading, record, found)
        origins.add(found.origin)
    if len(origins) > 1:
        raise NoFigureError(f"its repeats have different origins ({', '.join(sorted(origins))})")
    if not samples or not all(math.isfinite(value) for value in samples):
        raise NoFigureError(f"{reading.metric} by {reading.method} holds no finite sample")
    worst = next((record for record in usable if record.status != Status.OK), usable[0])
    return Figure(statistics.median(samples), min(samples), max(samples), origins.pop(), worst)


def _another_workload(reading: ClaimReading, record: Record) -> str:
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


def _in_unit(claim: Claim, reading: ClaimReading, record: Record, found: Measurement) -> list[float]:
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


def _why_not(reading: ClaimReading, record: Record) -> str:
    what = f"{reading.metric} by {reading.method}"
    if record.status != Status.OK:
        reason = f" ({record.reason.strip().rstrip('.')})" if record.reason.strip() else ""
        return f"the cell ended as {record.status.replace('_', ' ')}{reason}"
    told = [text for text in record.remarks if text.partition(":")[0] in (reading.metric, reading.method)]
    return f"the cell has no {what}" + (f" ({'; '.join(told).rstrip('.')})" if told else "")


def _sentence(claim: Claim, reading: ClaimReading, figure: Figure, found: str) -> str:
    """What an engineer reads: the figure, its origin, how it stands to the quoted one."""
    per = f" per {reading.per.removesuffix('s')}" if reading.per else ""
    ours = human(figure.ours, claim.unit) + per
    if figure.low != figure.high:
        ours += f", from {human(figure.low, claim.unit)} to {human(figure.high, claim.unit)}"
    bound = {"about": "", "at_least": "at least ", "at_most": "at most "}[claim.relation]
    bounded = claim.relation != "about"
    ratio = figure.ours / claim.value
    against = f"{ratio:.2f} of the {bound}{human(claim.value, claim.unit)}{per} quoted"
    end = {
        "holds": "the claim holds",
        "exceeds": "the claim does not hold" if bounded else "the claim understates it",
        "falls short": "the claim does not hold" if bounded else "the claim overstates it",
        "undecided": "the samples lie on both sides of what counts as the same figure",
    }[found]
    return f"{reading.text} {ours} ({figure.origin}), {against}: {end}."
