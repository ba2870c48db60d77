"""Put answers into words: what is accepted, what others published, what was found here, and by which run.

Reasons are made where records are judged, which knows ids alone; here they get the titles of conf/report and
conf/suite.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import NamedTuple

from harness.claims.answers import FEWEST, AnsweredClaim
from harness.claims.evidence import ILLUSTRATION, UNDECIDED, Evidence
from harness.claims.paper import UNIT_OF, PaperClaim, PublicRecord
from harness.claims.published import summary
from harness.config.optimizations import question_of, titles
from harness.config.run import names
from harness.records import Origin
from harness.report.spec import Spec, load_spec
from harness.report.tables import percent
from harness.units import LARGE, billions, human, kept_together, marked, number, times

ON_A_DEVICE = (Origin.MEASURED, Origin.EMULATED)  # origins of values that depend on the machine
FEW = 4  # published values up to which each is named; of more, their distribution


class Found(NamedTuple):
    """One thing that was found on a claim: its range, what it is of, all of it, and where it is recorded."""

    range: str  # `23.4 … 53.0 bytes per parameter ᵖ`; "" where no number was published
    of: str  # `reserved peaks of all ranks, published, n = 4`
    accepted: str  # by what it is judged; "no number" where by none
    detail: str  # all of it: n, quantiles, device, day
    strength: str  # A, B or C
    folders: tuple[str, ...]  # results folders; () for what others published
    source: str  # of what others published


def found(row: AnsweredClaim) -> list[Found]:
    """Return what was found on a claim, the best first: what decides, then by strength.

    Of several, those in the claim's own unit come first, then what was measured here where one example or
    counterexample suffices, then those with the most values. What is on another quantity stands last.
    """
    claim = row.claim
    ranked = []
    for one in row.evidence:
        beside = not (one.decides or one.context)
        folders = tuple(dict.fromkeys(run.folder for run in one.runs))
        texts = range_text(one, claim), _of(one), _accepted(one, claim), evidence_text(one, claim)
        rank = _rank(claim, beside, one.strength, alike(one, claim), one.grade, len(one.verdicts))
        ranked.append((rank, Found(*texts, one.strength, folders, "")))
    for record in claim.public:
        strength, n = "A" if record.decides else "C", len(record.values)
        of = f"{record.of}, {record.origin}, n = {n}" if n else shares_text(record, claim)
        texts = _published_range(record, claim), of, accepted_text(row), public_text(record, claim)
        rank = _rank(claim, not n, strength, True, record.origin, n)
        ranked.append((rank, Found(*texts, strength, (), record.source)))
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])]


def _rank(
    claim: PaperClaim, beside: bool, strength: str, alike: bool, grade: str, n: int
) -> tuple[bool, str, bool, bool, bool, int]:
    """Return the place of what was found. Of context, what others published on GPUs comes first."""
    one_suffices = claim.universal or claim.exists
    few = strength == "A" and n < FEWEST and not one_suffices and grade != Origin.CALCULATED
    later = grade != (Origin.MEASURED if one_suffices else Origin.PUBLISHED)
    return beside, strength, few, not alike, later, -n if strength == "A" else 0


def _of(one: Evidence) -> str:
    about = f"another quantity: {one.judged.quoted_by}" if one.related else one.group
    how = "fixed by the set-up" if one.grade == ILLUSTRATION else one.grade
    return ", ".join(filter(None, [about, how, f"n = {len(one.verdicts)}"]))


def accepted_text(row: AnsweredClaim) -> str:
    """Return what the claim accepts, which is what was judged: `1.5× … 3×`, `≥ 280 GB`."""
    if row.claim.band is not None:
        return _band_of(row.claim)
    bands = dict.fromkeys(_accepted(one, row.claim) for one in row.evidence if not one.related)
    return "; ".join(bands) or "no number"


def band_text(band: tuple[float, float], unit: str, per: str = "") -> str:
    """Return a band of values: `1.5× … 3×`, `≥ 280 GB`, `36 … 44 bytes per parameter`."""
    low, high = band
    if math.isinf(high):
        return f"≥ {value_text(low, unit, per)}"
    if low <= 0:
        return f"≤ {value_text(high, unit, per)}"
    if low == high:
        return value_text(low, unit, per)
    return _range(low, high, unit, per)


def public_text(record: PublicRecord, claim: PaperClaim) -> str:
    """Return what others published: each of a few values, of more n, the share in the band and quantiles."""
    shown = dict(record.values)
    parts: list[str] = []
    if len(record.values) > FEW:
        values = summary(list(record.values.values()))
        parts = [f"n = {values.n}"]
        if claim.band:
            low, high = claim.band
            inside = sum(low <= value <= high for value in record.values.values())
            parts.append(f"{100 * inside / values.n:.0f} % in the band")
        quantiles = {f"{q} %": value for q, value in values.quantiles.items()}
        shown = {"least": values.least, **quantiles, "most": values.most}
    parts += [f"{name}: {value_text(value, claim.unit, claim.per)}" for name, value in shown.items()]
    text = f"{record.of}: {', '.join(parts)}" if parts else record.of
    return f"{text} ({record.note})" if record.note else text


def shares_text(record: PublicRecord, claim: PaperClaim) -> str:
    """Return what a published record is of, in a few words, with its range and its median."""
    if not record.values:
        return marked(record.of, record.origin)
    values = summary(list(record.values.values()))
    median = f", median {value_text(values.quantiles[50], claim.unit, claim.per)}" if values.n > FEW else ""
    return f"{record.of}: {_published_range(record, claim)} (n = {values.n}{median})"


def _published_range(record: PublicRecord, claim: PaperClaim) -> str:
    """Return the least and the most of what others published, with its origin; "" without values."""
    if not record.values:
        return ""
    ends = min(record.values.values()), max(record.values.values())
    return marked(_range(*ends, claim.unit, claim.per), record.origin)


def evidence_text(one: Evidence, claim: PaperClaim) -> str:
    """Return what our values are, their range and origin, and how they were obtained where that differs."""
    grade = "" if one.grade == one.verdicts[0].origin else f", {one.grade}"
    group = f"{one.group}: " if one.group else ""
    accepted, notes = _accepted(one, claim), []
    if claim.band is not None and not one.related and accepted != _band_of(claim):
        notes.append(f"judged by {accepted}")
    if one.related:
        notes.append(f"another quantity: {one.judged.quoted_by}")
    first = f"{group}{range_text(one, claim)}{grade} ({of_runs(one, claim)})"
    return "; ".join(filter(None, [first, *notes, _undecided(one)]))


def _band_of(claim: PaperClaim) -> str:
    return band_text(claim.band, claim.unit, claim.per) if claim.band is not None else ""


def _accepted(one: Evidence, claim: PaperClaim) -> str:
    return band_text(one.judged.accepted, unit_of(one, claim), one.judged.per)


def _undecided(one: Evidence) -> str:
    """Return why a prediction decides nothing: its error is not known, or too large for where it lies."""
    if not one.method or not one.decides:
        return one.method
    if any(outcome != UNDECIDED for outcome in one.outcomes):
        return ""
    return f"too close to the edge to count: {one.method}"


def of_runs(one: Evidence, claim: PaperClaim) -> str:
    """Return how many values there are, their median, the device where that matters, and the days."""
    devices = dict.fromkeys(run.device for run in one.runs if one.verdicts[0].origin in ON_A_DEVICE)
    days = dict.fromkeys(run.day for run in one.runs)
    n = len(one.verdicts)
    median = [f"median {value_text(one.median, unit_of(one, claim), one.judged.per)}"] if n > FEW else []
    return ", ".join(filter(None, [f"n = {n}", *median, *devices, *days]))


def range_text(one: Evidence, claim: PaperClaim) -> str:
    """Return our range alone, with its origin."""
    return marked(_joined(*ends_text(one, claim)), one.verdicts[0].origin)


def ends_text(one: Evidence, claim: PaperClaim) -> tuple[str, str]:
    """Return the least and the most of our values."""
    unit = unit_of(one, claim)
    if unit == "x":
        return times(one.low), times(one.high)
    per = one.judged.per
    return value_text(one.low, unit, per), value_text(one.high, unit, per)


def _range(low: float, high: float, unit: str, per: str) -> str:
    return _joined(value_text(low, unit, per), value_text(high, unit, per))


def _joined(first: str, last: str) -> str:
    """Return both ends, their unit once: `23.4 … 53.0 bytes per parameter`."""
    if first == last:
        return last
    end = last.partition(" ")[2]
    return f"{first.removesuffix(f' {end}') if end else first} … {last}"


def unit_of(one: Evidence, claim: PaperClaim) -> str:
    """Return the unit in which values are printed: that of the claim where theirs is its base unit."""
    if one.is_ratio:
        return "x"
    if one.judged.unit == "1" and one.judged.per != claim.per:
        return "%"
    return claim.unit if one.judged.unit == "1" and claim.unit in ("x", "%", "GPUs") else one.judged.unit


def alike(one: Evidence, claim: PaperClaim) -> bool:
    """Return whether our values are in the claim's own unit."""
    return one.judged.unit == UNIT_OF.get(claim.unit, claim.unit) and one.judged.per == claim.per


def value_text(value: float, unit: str, per: str = "") -> str:
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
        return f"{number(value)} bytes per {per}"
    return human(value, unit)


def place(claim: PaperClaim) -> str:
    """Return who says it, and where."""
    return f"{claim.by}, {claim.section}"


def unbroken(text: str) -> str:
    """Return `text` with no-break spaces within a value with its unit, a range, and `n = 3`."""
    text = kept_together(text).replace(" …", "\N{NO-BREAK SPACE}…")
    return text.replace("n = ", "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


_SUITE = re.compile(r"(?<!harness )\bsuite[= ](\w+)")
"""A suite in a sentence; one in a command that a reader is to type stays as it is."""

_TO_RUN = re.compile(r"\bsuite=(\w+)(?= on )")
_ID = re.compile(r"\b[a-z0-9]+(?:[_.][a-z0-9]+)+\b")


def suite_title(suite: str) -> str:
    """Return the title of a suite's report in quotation marks; its name where there is no such suite."""
    spec = _spec(suite)
    return f"“{spec.title}”" if spec else suite


def in_words(text: str, claim: PaperClaim) -> str:
    """Return `text` with the titles of suites, variants, workloads and metrics in place of their ids."""
    suites = dict.fromkeys(one.partition("/")[0] for one in (*claim.judged, *claim.related))
    titles: dict[str, str] = {}
    for spec in filter(None, map(_spec, suites)):
        for key in ("optimization", "workload", "metric", "method"):
            titles = {**spec.names.get(key, {}), **titles}
    text = _ID.sub(lambda one: f"“{titles[one[0]]}”" if one[0] in titles else one[0], text)
    text = _TO_RUN.sub(lambda match: f"a run of {suite_title(match[1])}", text)
    return _SUITE.sub(lambda match: suite_title(match[1]), text)


@cache
def _spec(suite: str) -> Spec | None:
    """Return the report of a suite of conf/, None where there is no such suite."""
    if suite not in names("suite"):
        return None
    return load_spec(suite, titles(suite), question=question_of(suite))
