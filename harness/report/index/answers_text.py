"""Put answers into words: what is accepted, what others published, what was found here, and by which run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from harness.claims.answers import FEWEST, AnsweredClaim
from harness.claims.evidence import ILLUSTRATION, UNDECIDED, Evidence
from harness.claims.paper import PaperClaim, PublicRecord
from harness.claims.published import summary
from harness.records import Origin
from harness.report.tables.tables import percent
from harness.units import LARGE, billions, human, marked, times

ON_A_DEVICE = (Origin.MEASURED, Origin.EMULATED)
"""Origins of values that depend on the machine."""

FEW = 6
"""Published values up to which each is named; of more, their distribution."""


class Found(NamedTuple):
    """One thing that was found on a claim: the range in a few words, all of it, and where it is recorded."""

    short: str  # `23.4 … 53.0 bytes per parameter ᵖ`
    detail: str  # what it is of, n, quantiles, device, day
    strength: str  # A, B or C
    folders: tuple[str, ...]  # results folders; () for what others published
    source: str  # of what others published


def found(row: AnsweredClaim) -> list[Found]:
    """Return what was found on a claim, the best first.

    First what decides: by strength, measured before published, of several the most values. Context stands in
    the order in which conf/ lists it, nearest to the claim first; what is on another quantity stands last.
    """
    claim = row.claim
    ranked = [
        (
            _rank(
                claim, one.related or one.grade == ILLUSTRATION, one.strength, one.grade, len(one.verdicts)
            ),
            Found(
                f"{one.group}: {range_text(one, claim)}" if one.group else range_text(one, claim),
                evidence_text(one, claim),
                one.strength,
                tuple(dict.fromkeys(run.folder for run in one.runs)),
                "",
            ),
        )
        for one in row.evidence
    ]
    ranked += [
        (
            _rank(claim, not one.values, "A" if one.decides else "C", one.origin, len(one.values)),
            Found(
                shares_text(one, claim), public_text(one, claim), "A" if one.decides else "C", (), one.source
            ),
        )
        for one in claim.public
    ]
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])]


def _rank(
    claim: PaperClaim, beside: bool, strength: str, grade: str, n: int
) -> tuple[bool, str, bool, bool, int]:
    """Return the place of what was found: too few values come after those that decide."""
    few = strength == "A" and n < FEWEST and not (claim.universal or claim.exists)
    return beside, strength, few, strength == "A" and grade != Origin.MEASURED, -n if strength == "A" else 0


def answer_text(row: AnsweredClaim) -> str:
    """Return the answer with its strength, why, and what would decide where nothing does."""
    answer = f"**{row.answer}**, {row.strength}"
    why = f"{answer}: {row.why}" if row.why else answer
    return f"{why}. To decide: {row.would_decide}" if row.would_decide else why


def accepted_text(row: AnsweredClaim) -> str:
    """Return what the claim accepts, which is what was judged: `1.5× … 3×`, `≥ 280 GB`."""
    claim = row.claim
    if claim.band is not None:
        return band_text(claim.band, claim.unit, claim.per)
    bands = dict.fromkeys(_accepted(one, claim) for one in row.evidence if not one.related)
    return "; ".join(bands) or "no number"


def band_text(band: tuple[float, float], unit: str, per: str = "") -> str:
    """Return a band of values: `1.5× … 3×`, `≥ 280 GB`."""
    low, high = band
    if math.isinf(high):
        return f"≥ {_value(low, unit, per)}"
    if low <= 0:
        return f"≤ {_value(high, unit, per)}"
    if low == high:
        return _value(low, unit, per)
    return f"{_value(low, unit, per)} … {_value(high, unit, per)}"


def public_text(record: PublicRecord, claim: PaperClaim) -> str:
    """Return what others published: each of a few values, of more n, the share in the band and quantiles."""
    text = record.of
    if record.values and len(record.values) <= FEW:
        each = (f"{name}: {_value(value, claim.unit, claim.per)}" for name, value in record.values.items())
        text = f"{text}: {', '.join(each)}"
    elif record.values:
        values = summary(list(record.values.values()))
        parts = [f"n = {values.n}"]
        if claim.band:
            low, high = claim.band
            inside = sum(low <= value <= high for value in record.values.values())
            parts.append(f"{100 * inside / values.n:.0f} % in the band")
        shown = {
            "least": values.least,
            **{f"{q} %": v for q, v in values.quantiles.items()},
            "most": values.most,
        }
        parts += [f"{name}: {_value(value, claim.unit, claim.per)}" for name, value in shown.items()]
        text = f"{text}: {', '.join(parts)}"
    return f"{text} ({record.note})" if record.note else text


def shares_text(record: PublicRecord, claim: PaperClaim) -> str:
    """Return what a published record is of, in a few words, with its range and its median."""
    if not record.values:
        return marked(record.of, record.origin)
    values = summary(list(record.values.values()))
    ends = _range(values.least, values.most, claim.unit, claim.per)
    median = f", median {_value(values.quantiles[50], claim.unit, claim.per)}" if values.n > FEW else ""
    return f"{record.short}: {marked(ends, record.origin)} (n = {values.n}{median})"


def evidence_text(one: Evidence, claim: PaperClaim) -> str:
    """Return what our values are, their range and origin, and how they were obtained where that differs."""
    origin = one.verdicts[0].origin
    grade = "" if one.grade == origin else f", {one.grade}"
    group = f"{one.group}: " if one.group else ""
    notes = [f"judged by {_accepted(one, claim)}"] if _has_its_own_band(one, claim) else []
    notes += [f"another quantity: {one.judged.quoted_by}"] if one.related else []
    notes += [reason for reason in [_undecided(one)] if reason]
    return f"{group}{range_text(one, claim)}{grade} ({of_runs(one, claim)}){''.join(f'; {note}' for note in notes)}"


def _has_its_own_band(one: Evidence, claim: PaperClaim) -> bool:
    """Return whether values are judged by another band than the one that is printed for the claim."""
    return (
        claim.band is not None
        and not one.related
        and _accepted(one, claim) != band_text(claim.band, claim.unit, claim.per)
    )


def _accepted(one: Evidence, claim: PaperClaim) -> str:
    return band_text(one.judged.accepted, _unit(one, claim), one.judged.per)


def _undecided(one: Evidence) -> str:
    """Return why a prediction decides nothing: its error is not known, or too large for where it lies."""
    if not one.method or not one.decides:
        return one.method
    if any(outcome != UNDECIDED for outcome in one.outcomes):
        return ""
    return f"too close to the edge to count: {one.method}"


def of_runs(one: Evidence, claim: PaperClaim) -> str:
    """Return how many values there are, their median, on which device where that matters, and from which days."""
    devices = dict.fromkeys(run.device for run in one.runs if one.verdicts[0].origin in ON_A_DEVICE)
    days = dict.fromkeys(run.day for run in one.runs)
    n = len(one.verdicts)
    median = [f"median {_value(one.median, _unit(one, claim), one.judged.per)}"] if n > FEW else []
    return ", ".join(filter(None, [f"n = {n}", *median, *devices, *days]))


def range_text(one: Evidence, claim: PaperClaim) -> str:
    """Return our range alone, with its origin."""
    unit = _unit(one, claim)
    if unit != "x":
        return marked(_range(one.low, one.high, unit, one.judged.per), one.verdicts[0].origin)
    low, high = times(one.low), times(one.high)
    return marked(low if low == high else f"{low} … {high}", one.verdicts[0].origin)


def _range(low: float, high: float, unit: str, per: str) -> str:
    """Return both ends of what was found, the unit once."""
    first, last = _value(low, unit, per), _value(high, unit, per)
    if first == last:
        return last
    end = last.partition(" ")[2]
    return f"{first.removesuffix(f' {end}') if end else first} … {last}"


def _unit(one: Evidence, claim: PaperClaim) -> str:
    """Return the unit in which values are printed: that of the claim where theirs is its base unit."""
    if one.is_ratio:
        return "x"
    if one.judged.unit == "1" and one.judged.per != claim.per:
        return "%"
    return claim.unit if one.judged.unit == "1" and claim.unit in ("x", "%", "GPUs") else one.judged.unit


def _value(value: float, unit: str, per: str = "") -> str:
    """Return a value as published or claimed; `x` is a ratio, `%` a share, `parameters`, `GPUs` counts."""
    if unit == "GPUs":
        return f"{value:g} GPUs"
    if unit == "x":
        return f"{value:,.4g}×" if value < LARGE else times(value)
    if unit == "%":
        return percent(value)
    if unit == "parameters":
        return billions(value)
    if unit == "B" and per:
        return f"{value:.3g} bytes per {per}"
    return human(value, unit)


def place(claim: PaperClaim) -> str:
    """Return who says it, and where."""
    return f"{claim.by}, {claim.section}"


def links(folders: Sequence[str]) -> str:
    """Return links to the reports of results folders."""
    return ", ".join(f"[{folder}]({folder}/report.md)" for folder in folders)
