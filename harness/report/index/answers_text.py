"""Put answers into words: what is accepted, what others published, what was found here, and by which run."""

from __future__ import annotations

import math

from harness.claims.answers import AnsweredClaim
from harness.claims.evidence import UNDECIDED, Evidence
from harness.claims.paper import PaperClaim, PublicRecord
from harness.records import Origin
from harness.report.tables.tables import percent
from harness.units import human, marked, times

ON_A_DEVICE = (Origin.MEASURED, Origin.EMULATED)
"""Origins of values that depend on the machine."""


def answer_text(row: AnsweredClaim) -> str:
    """Return the answer with its strength, and why."""
    answer = f"**{row.answer}**, {row.strength}"
    return f"{answer}: {row.why}" if row.why else answer


def accepted_text(claim: PaperClaim) -> str:
    """Return the band that the claim accepts: `1.50× … 3.00×`, `≥ 280 GB`."""
    if claim.band is None:
        return "no number"
    low, high = claim.band
    if math.isinf(high):
        return f"≥ {_value(low, claim.unit)}"
    return (
        f"≤ {_value(high, claim.unit)}"
        if low <= 0
        else f"{_value(low, claim.unit)} … {_value(high, claim.unit)}"
    )


def public_text(record: PublicRecord, claim: PaperClaim) -> str:
    """Return what others published, with n, shares and quantiles."""
    values = ", ".join(f"{name}: {_value(value, claim.unit)}" for name, value in record.values.items())
    shares = {"inside": record.inside, "below": record.below, "above": record.above}
    parts = [f"n = {record.n}"] if record.n and not values else []
    parts += [f"{100 * share:.0f} % {name}" for name, share in shares.items() if share is not None]
    parts += [f"median {_value(record.median, claim.unit)}"] if record.median is not None else []
    parts += [f"least {_value(record.least, claim.unit)}"] if record.least is not None else []
    parts += [f"{name} %: {_value(value, claim.unit)}" for name, value in record.quantiles.items()]
    text = f"{record.of}: {values or ', '.join(parts)}" if values or parts else record.of
    return f"{text} ({record.note})" if record.note else text


def shares_text(record: PublicRecord, claim: PaperClaim) -> str:
    """Return what a published record is of, in a few words, with its range or its median."""
    if record.values:
        low, high = min(record.values.values()), max(record.values.values())
        ends = (
            _value(low, claim.unit)
            if low == high
            else f"{_value(low, claim.unit)} … {_value(high, claim.unit)}"
        )
        return marked(f"{record.short}: {ends} (n = {record.n})", record.origin)
    if not record.n:
        return marked(record.of, record.origin)
    median = f"median {_value(record.median, claim.unit)} " if record.median is not None else ""
    return marked(f"{record.short}: {median}(n = {record.n})", record.origin)


def evidence_text(one: Evidence, claim: PaperClaim) -> str:
    """Return what our values are, their range and origin, and how they were obtained where that differs."""
    ratio = one.is_ratio or (one.judged.unit == "1" and claim.unit == "x")
    unit = "x" if ratio else one.judged.unit
    text = _range(one, unit) + (f" per {claim.per}" if claim.per else "")
    origin = one.verdicts[0].origin
    grade = "" if one.grade == origin else f", {one.grade}"
    group = f"{one.group}: " if one.group else ""
    why = "".join(f"; {reason}" for reason in [_undecided(one)] if reason)
    return f"{group}{marked(text, origin)}{grade} ({of_runs(one)}){why}"


def _undecided(one: Evidence) -> str:
    """Return why a prediction decides nothing: its error is not known, or too large for where it lies."""
    if not one.method or not one.decides:
        return one.method
    if any(outcome != UNDECIDED for outcome in one.outcomes):
        return ""
    return f"too close to the edge to count: {one.method}"


def of_runs(one: Evidence) -> str:
    """Return how many values there are, on which device where that matters, and from which days."""
    devices = dict.fromkeys(run.device for run in one.runs if one.verdicts[0].origin in ON_A_DEVICE)
    days = dict.fromkeys(run.day for run in one.runs)
    parts = [f"n = {len(one.verdicts)}", *devices, *days]
    return ", ".join(filter(None, parts))


def range_text(one: Evidence) -> str:
    """Return our range alone, with its origin."""
    return marked(_range(one, "x" if one.is_ratio else one.judged.unit), one.verdicts[0].origin)


def _range(one: Evidence, unit: str) -> str:
    low, high = (times(end) if unit == "x" else _value(end, unit) for end in (one.low, one.high))
    return low if low == high else f"{low} … {high}"


def _value(value: float, unit: str) -> str:
    """Return a value as published or claimed; `x` is a ratio, `%` a share, `parameters`, `GPUs` counts."""
    if unit == "GPUs":
        return f"{value:g} GPUs"
    if unit == "x":
        return f"{value:,g}×"
    if unit == "%":
        return percent(value)
    return f"{value / 1e9:g} B" if unit == "parameters" else human(value, unit)


def place(claim: PaperClaim) -> str:
    """Return who says it, and where."""
    return f"{claim.by}, {claim.section}"
