"""Claims with their verdicts, made ready to be set as tables and cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.claim_model import Claim, Verdict
from harness.report.spec import Block
from harness.report.tables import Table, Text
from harness.report.verdict_sentences import sentence
from harness.units import human, marked

OUTCOMES = ("holds", "exceeds", "falls short", "undecided", "unavailable")
LOOKS = {"holds": "good", "exceeds": "bad", "falls short": "bad", "undecided": "warn", "unavailable": "muted"}
RELATIONS = {"about": "", "at_least": "≥ ", "at_most": "≤ ", "up_to": "up to ", "range": ""}
MARKS = {
    "stated": "stated by the source",
    "secondary": "found in others' notes about the source",
    "chart": "read off a chart",
    "derived": "derived",
}


class Judged(NamedTuple):
    """A claim with the verdicts on its interpretations."""

    claim: Claim
    verdicts: tuple[Verdict, ...]

    def sentence(self, verdict: Verdict) -> str:
        """The verdict in words."""
        named = {one.name: one for one in self.claim.interpretations}
        return sentence(self.claim, named[verdict.interpretation], verdict)


def judged(claims: Iterable[Claim], verdicts: Sequence[Verdict]) -> list[Judged]:
    """The claims in their order, each with its verdicts."""
    return [Judged(claim, tuple(v for v in verdicts if v.claim == claim.id)) for claim in claims]


def tally(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many verdicts of each outcome, those of none left out."""
    found = list(verdicts)
    counts = {outcome: sum(v.outcome == outcome for v in found) for outcome in OUTCOMES}
    return {outcome: count for outcome, count in counts.items() if count}


def quoted(claim: Claim) -> str:
    """The paper's figure with the claim's relation to it; of an increase, its variants in their order."""
    if claim.relation == "increasing":
        return _increases(claim)
    divide_by = claim.interpretations[0].divide_by
    per = f" per {divide_by.removesuffix('s')}" if divide_by else ""
    upper = "" if claim.upper is None else f" … {_figure(claim, claim.upper)}"
    return RELATIONS[claim.relation] + _figure(claim, claim.value) + upper + per


def _increases(claim: Claim) -> str:
    """`increases from a to b to c`, and by how much where merely more is not enough."""
    orders = dict.fromkeys(" to ".join(one.order) for one in claim.interpretations)
    least = f", each step ≥ {_figure(claim, claim.value)}" if claim.value > 1 else ""
    return "; ".join(f"increases from {order}" for order in orders) + least


def ours(claim: Claim, verdict: Verdict) -> str:
    """Our figure with its origin, with its range where the samples differ."""
    if verdict.ours is None or verdict.low is None or verdict.high is None:
        return "–"
    text = _figure(claim, verdict.ours)
    low, high = _figure(claim, verdict.low), _figure(claim, verdict.high)
    if verdict.basis == "bounds":
        return marked(f"{low} … {high}", verdict.origin)
    if verdict.low != verdict.high and not (low == high == text and _is_ratio(claim)):
        text += f" ({low} … {high})"
    return marked(text, verdict.origin)


def _figure(claim: Claim, value: float) -> str:
    """In the claim's unit; a ratio of two variants with its sign."""
    return human(value, claim.unit, "x" if _is_ratio(claim) else None)


def _is_ratio(claim: Claim) -> bool:
    return any(one.relative_to or one.order for one in claim.interpretations)


def outcome_text(verdict: Verdict) -> str:
    """`falls short, elsewhere`."""
    return f"{verdict.outcome}, {verdict.where}" if verdict.where else verdict.outcome


def verdict_table(block: Block, claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> Table:
    """One row per interpretation."""
    rows = []
    for claim, found in judged(claims, verdicts):
        for i, verdict in enumerate(found):
            rows.append(
                (
                    Text(claim.quoted_by if i == 0 else "", look="word"),
                    Text(quoted(claim) if i == 0 else ""),
                    Text(verdict.interpretation, look="word"),
                    Text(ours(claim, verdict), verdict.cell if verdict.ours is not None else ""),
                    Text("–" if verdict.ratio is None else f"{verdict.ratio:.2f}×"),
                    Text(outcome_text(verdict), look=LOOKS[verdict.outcome]),
                )
            )
    header = ("Claimed in", "Quoted", "Read as", "Here", "Ratio", "Verdict")
    text = block.text or ("" if rows else "No claims are recorded for this suite.")
    return Table(block.id, block.title, text, header, tuple(rows))
