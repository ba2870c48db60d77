"""Put claims and their verdicts into words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.claims.model import Claim, Verdict
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import Table, TableCell
from harness.report.tables.verdict_sentences import sentence
from harness.units import counted, human, marked

OUTCOMES = ("holds", "exceeds", "falls short", "undecided", "context", "unavailable")
LOOKS = {
    "holds": "good",
    "exceeds": "info",  # of a quoted value, which may be too low or too high: neither good nor bad here
    "falls short": "info",
    "undecided": "warn",
    "context": "muted",
    "unavailable": "muted",
}
"""How an outcome looks. Red is for results that are wrong and for what costs; see the page's legend."""
RELATIONS = {"about": "", "at_least": "≥ ", "at_most": "≤ ", "up_to": "up to ", "range": ""}
MARKS = {
    "stated": "stated by the source",
    "secondary": "found in others' notes about the source",
    "chart": "read off a chart",
    "derived": "derived",
}


class ClaimWithVerdicts(NamedTuple):
    """A claim with the verdicts on its interpretations."""

    claim: Claim
    verdicts: tuple[Verdict, ...]

    def sentence(self, verdict: Verdict) -> str:
        """Return the verdict in words."""
        named = {one.name: one for one in self.claim.interpretations}
        return sentence(self.claim, named[verdict.interpretation], verdict)


def judged(claims: Iterable[Claim], verdicts: Sequence[Verdict]) -> list[ClaimWithVerdicts]:
    """Return the claims in their order, each with its verdicts."""
    return [ClaimWithVerdicts(claim, tuple(v for v in verdicts if v.claim == claim.id)) for claim in claims]


def count_outcomes(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Return how many verdicts have each outcome; outcomes without one are left out."""
    listed = list(verdicts)
    counts = {outcome: sum(v.shown == outcome for v in listed) for outcome in OUTCOMES}
    return {outcome: count for outcome, count in counts.items() if count}


def quoted(claim: Claim) -> str:
    """Return the quoted value with its relation."""
    if claim.relation == "increasing":
        return f"increases by ≥ {_value(claim, claim.value)}" if claim.value > 1 else "increases"
    divide_by = claim.interpretations[0].divide_by
    per = f" per {divide_by.removesuffix('s')}" if divide_by else ""
    upper = "" if claim.upper is None else f" … {_value(claim, claim.upper)}"
    return RELATIONS[claim.relation] + _value(claim, claim.value) + upper + per


def orders(claim: Claim, spec: Spec) -> list[str]:
    """Return the variants of each order in which the claim's value increases, as people know them."""
    distinct = dict.fromkeys(one.order for one in claim.interpretations if one.order)
    return ["Increases: " + " → ".join(spec.name("optimization", one) for one in order) for order in distinct]


def ours(claim: Claim, verdict: Verdict) -> str:
    """Return our value with its origin, with its range where the samples differ."""
    if verdict.ours is None or verdict.low is None or verdict.high is None:
        return "–"
    text = _value(claim, verdict.ours)
    low, high = _value(claim, verdict.low), _value(claim, verdict.high)
    if verdict.basis == "bounds":
        return marked(f"{low} … {high}", verdict.origin)
    if verdict.low != verdict.high and not (low == high == text and _is_ratio(claim)):
        text += f" ({low} … {high})"
    return marked(text, verdict.origin)


def _value(claim: Claim, value: float) -> str:
    """Return a value in the claim's unit; a ratio of two variants with its sign."""
    return human(value, claim.unit, "x" if _is_ratio(claim) else None)


def _is_ratio(claim: Claim) -> bool:
    return any(one.relative_to or one.order for one in claim.interpretations)


def accepted(claim: Claim) -> str:
    """Return the band of values that count as the claim's: `36 GB … 44 GB`, or `≥ 2.00×` where it is open."""
    low, high = claim.accepted
    if claim.relation == "increasing":
        return "an increase from each to the next"
    if math.isinf(high):
        return f"≥ {_value(claim, low)}"
    if math.isinf(low):
        return f"≤ {_value(claim, high)}"
    return f"{_value(claim, low)} … {_value(claim, high)}"


def outcomes_line(claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> str:
    """Return `12 claims in 40 interpretations: 13 holds, 5 undecided, 22 unavailable`."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in count_outcomes(verdicts).items())
    total = f"{counted(len(claims), 'claim')} in {counted(len(verdicts), 'interpretation')}"
    return f"{total}: {counts}" if counts else total


def verdict_table(block: ReportBlock, claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> Table:
    """Return one row per interpretation."""
    rows = []
    for claim, claim_verdicts in judged(claims, verdicts):
        for i, verdict in enumerate(claim_verdicts):
            rows.append(
                (
                    TableCell(claim.quoted_by if i == 0 else "", look="word"),
                    TableCell(quoted(claim) if i == 0 else ""),
                    TableCell(verdict.interpretation, look="word"),
                    TableCell(ours(claim, verdict), verdict.cell if verdict.ours is not None else ""),
                    TableCell("–" if verdict.ratio is None else f"{verdict.ratio:.2f}×"),
                    TableCell(verdict.shown, look=LOOKS[verdict.shown]),
                )
            )
    header = ("Claimed in", "Quoted", "Interpretation", "Here", "Ratio", "Verdict")
    text = block.text or ("" if rows else "No claims are recorded for this suite.")
    return Table(block.id, block.title, text, header, tuple(rows))
