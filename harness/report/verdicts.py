"""Put claims and their verdicts into words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.claims.judge import NOT_JUDGED, failing_steps, undecided_steps
from harness.claims.model import AdjacentRatio, Claim, Difference, Interpretation, Verdict
from harness.report.spec import Heading, Spec
from harness.report.tables import Table, TableCell, word
from harness.units import counted, human, marked

BANDS = {"holds": "inside", "exceeds": "above", "falls short": "below"}

STATS = {"min": "the minimum", "max": "the maximum", "mean": "the mean"}


def sentence(claim: Claim, interpretation: Interpretation, verdict: Verdict) -> str:
    """Return our value, its origin, how it compares with the quoted one, and the outcome."""
    if verdict.ours is None or verdict.low is None or verdict.high is None:
        return f"No value for “{interpretation.name}”: {verdict.reason}."
    if verdict.steps:
        return _order_sentence(claim, interpretation, verdict)
    shown = "x" if interpretation.relative_to else None
    per = f" per {interpretation.divide_by.removesuffix('s')}" if interpretation.divide_by else ""
    ours = human(verdict.ours, claim.unit, shown) + per
    low, high = (human(end, claim.unit, shown) for end in (verdict.low, verdict.high))
    if verdict.basis == "bounds":
        ours = f"between {low} and {high}{per}"
    elif verdict.low != verdict.high and not (interpretation.relative_to and low == high):
        ours += f", from {low} to {high}"
    origin = f"{verdict.origin}, {basis}" if (basis := _basis(verdict)) else verdict.origin
    quoted = _quoted(claim, shown) + per
    bounded = f"against {quoted}" if claim.upper is None else quoted
    exact = verdict.ratio is not None and claim.relation == "about"
    compared = f"{verdict.ratio:.2f} of the {quoted}" if exact else bounded
    end = _end(claim, interpretation, verdict)
    return f"{interpretation.text} {ours} ({origin}), {compared} quoted: {end}{_noise(verdict)}."


def difference_text(difference: Difference) -> str:
    """Return one condition that differs, in words."""
    condition, found, wanted, variants = difference
    allowed = " or ".join(one.replace("*", " ").strip() for one in wanted.split(" | "))
    if condition == "origin":
        text = f"{found}, not {wanted}"
    elif condition == NOT_JUDGED:
        text = found
    elif condition == "status":
        text = f"the cell ended as {found.replace('_', ' ')}"
    elif not found:
        text = f"{condition} not recorded, the claim has {allowed}"
    else:
        text = f"{condition} {found}, the claim has {allowed}"
    return f"{text} ({', '.join(variants)})" if variants else text


def _quoted(claim: Claim, shown: str | None) -> str:
    value = human(claim.value, claim.unit, shown)
    if claim.upper is not None:
        return f"against a range of {value} to {human(claim.upper, claim.unit, shown)}"
    return {"at_least": "at least ", "at_most": "at most ", "up_to": "up to "}.get(claim.relation, "") + value


def _basis(verdict: Verdict) -> str:
    if verdict.basis in STATS:
        interval = " and its 95 % interval" if verdict.basis == "mean" else ""
        return f"{STATS[verdict.basis]} of {counted(verdict.samples, 'sample')}{interval}"
    return "" if verdict.basis in ("samples", "bounds") else _rounds(verdict.processes, verdict.samples)


def _rounds(processes: int, rounds: int) -> str:
    return f"{counted(processes, 'process', 'processes')}, {counted(rounds, 'round')}"


def _end(claim: Claim, interpretation: Interpretation, verdict: Verdict) -> str:
    bounded = claim.relation in ("at_least", "at_most")
    interval = interpretation.relative_to or interpretation.stat == "mean"
    spread = "the interval lies" if interval else "the samples lie"
    spread = "the bounds lie" if interpretation.stat == "bounds" else spread
    if verdict.shown == "context" and verdict.outcome in BANDS:
        return f"{BANDS[verdict.outcome]} the accepted band, as context"
    return {
        "holds": "the claim holds",
        "exceeds": "the claim does not hold" if bounded else "the claim understates it",
        "falls short": "the claim does not hold" if bounded else "the claim overstates it",
        "undecided": f"{spread} partly inside and partly outside the accepted band",
    }[verdict.outcome]


def _noise(verdict: Verdict) -> str:
    """Return the warning that our value is within the run's noise; "" where it is not."""
    if verdict.noise is None:
        return ""
    low, high = (_times(end) for end in verdict.noise)
    least = min(verdict.steps, key=lambda step: step.ratio, default=None)
    what = f"the step from {least.before} to {least.after}" if least else "it"
    return f"; {what} lies within this run's noise ({low} to {high})"


def _order_sentence(claim: Claim, interpretation: Interpretation, verdict: Verdict) -> str:
    """Return every step in order, their origin, and which of them decides."""
    verb = "increases" if verdict.outcome == "holds" else "goes"
    steps: list[str] = []
    rests_on: dict[str, None] = {}
    for step in verdict.steps:
        low, high = _times(step.low), _times(step.high)
        between = f" ({low} to {high})" if low != high else ""
        steps.append(f"{_times(step.ratio)}{between} to {step.after}")
        if step.basis in ("pairs", "ranges"):
            paired = step.basis == "pairs"
            rests_on[_rounds(step.processes, step.samples) if paired else "ranges of all samples"] = None
    origin = f"{verdict.origin}, {' or '.join(rests_on)}" if rests_on else verdict.origin
    asked = f", where each step is to be at least {_times(claim.value)}" if claim.value > 1 else ""
    start = f"{interpretation.text} {verb} from {interpretation.order[0]} by {', '.join(steps)}"
    return f"{start} ({origin}){asked}: {_order_end(claim, verdict)}{_noise(verdict)}."


def _order_end(claim: Claim, verdict: Verdict) -> str:
    steps, context = verdict.steps, verdict.shown == "context"
    if verdict.outcome == "holds":
        return "each step is an increase, as context" if context else "the claim holds"
    if verdict.outcome == "falls short":
        enough = " enough" if claim.value > 1 else ""
        failing = f"no increase{enough} {_named(failing_steps(claim, steps))}"
        return f"{failing}, as context" if context else f"{failing}, so the claim does not hold"
    undecided = undecided_steps(claim, steps)
    paired = all(step.basis == "pairs" for step in undecided)
    spread = "the interval lies" if paired else "the samples lie"
    return f"{_named(undecided)} {spread} on both sides of what counts as an increase"


def _named(steps: Sequence[AdjacentRatio]) -> str:
    return " and ".join(f"from {step.before} to {step.after}" for step in steps)


def _times(ratio: float) -> str:
    return human(ratio, "1", "x")


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


def verdict_table(heading: Heading, claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> Table:
    """Return one row per interpretation."""
    rows = []
    for claim, own in judged(claims, verdicts):
        for i, verdict in enumerate(own):
            rows.append((
                word("" if i else claim.quoted_by),
                TableCell("" if i else quoted(claim)),
                word(verdict.interpretation),
                TableCell(ours(claim, verdict), verdict.cell if verdict.ours is not None else ""),
                TableCell("–" if verdict.ratio is None else f"{verdict.ratio:.2f}×"),
                TableCell(verdict.shown, look=LOOKS[verdict.shown]),
            ))  # fmt: skip
    header = ("Claimed in", "Quoted", "Interpretation", "Here", "Ratio", "Verdict")
    text = heading.text or ("" if rows else "No claims are recorded for this suite.")
    return Table("claims", heading.title, text, header, tuple(rows))
