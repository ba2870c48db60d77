"""Answer each claim of the paper from verdicts and the public record, with one word of a closed list. Pure.

The strength of the evidence stands next to the word. A: values measured on the claim's class of device, here
or in public, the source's own formula, or a quotation that differs from its source. B: predicted by a method
whose error on measurements of others is known and several times smaller than the distance to the claim's
band. C: a mechanism, or another class of device; it makes a claim plausible or implausible and no more.
D: nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.claims.evidence import (
    ILLUSTRATION,
    INSIDE,
    OUTSIDE,
    UNDECIDED,
    Evidence,
    Findings,
    Share,
    evidence_of,
)
from harness.claims.model import Verdict
from harness.claims.paper import PaperClaim, PublicRecord
from harness.claims.values import NO_INTERVAL
from harness.config.validation import ConfigError
from harness.records import Origin
from harness.units import counted, human, times

CONFIRMED = "confirmed"
PARTLY = "partly"
CONTRADICTED = "contradicted"
MISQUOTED = "misquoted"
PLAUSIBLE = "plausible"
IMPLAUSIBLE = "implausible"
NO_EVIDENCE = "no evidence"
ANSWERS = (CONFIRMED, PARTLY, CONTRADICTED, MISQUOTED, PLAUSIBLE, IMPLAUSIBLE, NO_EVIDENCE)

NOT_MEASURED = "no run here measures it"

WITHOUT_INTERVAL = "the values of this run have no interval: it needs more repeats"

MOST = 0.9
"""Share of the deciding values inside a claim's band from which on it is confirmed; outside, contradicted."""

HALF = 0.5
"""The same where the claim says "often" or "common"."""

FEWEST = 3
"""Values of a record below which it decides nothing; but one counterexample decides on a universal claim."""

NARROW = 0.01
"""Relative distance to the edge of a band below which a value inside it is named with the distance."""


@dataclass(frozen=True, slots=True)
class AnsweredClaim:
    """A claim with its answer, how strong the evidence is, why, and our evidence, the best first."""

    claim: PaperClaim
    answer: str  # one of ANSWERS
    strength: str  # A, B, C or D
    why: str
    evidence: tuple[Evidence, ...]
    missing: tuple[str, ...] = ()  # judged claims of suites that the results lack
    lacking: str = ""  # why there is no evidence of ours


def answer_claims(claims: Iterable[PaperClaim], findings: Findings) -> list[AnsweredClaim]:
    """Return each claim answered."""
    return [_answered(claim, findings) for claim in claims]


def refuse_unknown(claims: Iterable[PaperClaim], known: Iterable[str]) -> None:
    """Raise ConfigError where a claim names a judged claim that is in no file of conf/claims."""
    names = set(known)
    for claim in claims:
        for name in claim.judged:
            if name not in names:
                raise ConfigError(f"answers.yaml ({claim.id}).judged: {name!r} is no claim of conf/claims")


def _answered(claim: PaperClaim, findings: Findings) -> AnsweredClaim:
    known = [name for name in claim.judged if name in findings.judged]
    evidence = [one for name in known for one in evidence_of(name, findings)]
    evidence.sort(key=lambda one: (one.strength, one.grade == ILLUSTRATION))
    missing = tuple(one for one in claim.judged if one not in findings.judged)
    answer, strength, why = _answer(claim, evidence)
    verdicts = [verdict for name in known for verdict in findings.judged[name][1]]
    if why == NOT_MEASURED and any(one.reason.startswith(NO_INTERVAL) for one in verdicts):
        why = WITHOUT_INTERVAL
    lacking = "" if evidence else _lacking(verdicts, missing)
    return AnsweredClaim(claim, answer, strength, why, tuple(evidence), missing, lacking)


def _lacking(verdicts: Sequence[Verdict], missing: Sequence[str]) -> str:
    """Return the first reason why there is no value, and how many others there are."""
    reasons = dict.fromkeys(
        WITHOUT_INTERVAL if one.reason.startswith(NO_INTERVAL) else one.reason
        for one in verdicts
        if one.reason
    )
    reasons |= dict.fromkeys(f"no results of suite {name.partition('/')[0]}" for name in missing)
    if len(reasons) < 2:
        return next(iter(reasons), "")
    return f"{next(iter(reasons))}, and {counted(len(reasons) - 1, 'more reason')}"


def _answer(claim: PaperClaim, evidence: Sequence[Evidence]) -> tuple[str, str, str]:
    """Return the answer, its strength, and why in a few words."""
    if claim.misquoted:
        missing = f"Not built: {claim.not_built}." if claim.not_built else ""
        return MISQUOTED, "A", f"{claim.misquoted} {missing}".strip()
    if claim.universal and (found := _first(claim, evidence, OUTSIDE)):
        return CONTRADICTED, *found
    if claim.exists and (found := _first(claim, evidence, INSIDE)):
        return CONFIRMED, *found
    shares = [_public_share(claim, one) for one in claim.public if one.decides]
    shares += [one.share for one in evidence if one.strength == "A"]
    for strength, some in (("A", shares), ("B", _predictions(evidence))):
        if enough := [one for one in some if one.n >= FEWEST]:
            if claim.universal and any(one.inside < 1 for one in enough):
                return PLAUSIBLE, "C", f"no counterexample is known: {'; '.join(map(_in_words, enough))}"
            methods = dict.fromkeys(one.method for one in evidence if one.strength == strength and one.method)
            return _decided(claim, enough), strength, "; ".join([*map(_in_words, enough), *methods])
    return _context(claim, evidence)


def _first(claim: PaperClaim, evidence: Sequence[Evidence], outcome: str) -> tuple[str, str] | None:
    """Return the strength of the best value with an outcome, and what it is: measured before published."""

    def rank(one: Evidence) -> tuple[str, bool]:
        return one.strength, one.grade != Origin.MEASURED

    found = [
        (one, verdict.ours)
        for one in sorted(evidence, key=rank)
        for verdict, its in zip(one.verdicts, one.outcomes, strict=True)
        if one.decides and its == outcome and verdict.ours is not None
    ]
    if found and found[0][0].strength == "A":
        return "A", _value_of(*found[0])
    low, high = claim.band or (-math.inf, math.inf)
    for record in claim.public:
        known = record.decides and record.inside is not None and not record.bound
        if known and outcome == OUTSIDE and record.inside != 1:
            return "A", _in_words(_public_share(claim, record))
        for value in record.values.values():
            if record.decides and (INSIDE if low <= value <= high else OUTSIDE) == outcome:
                shown = times(value) if claim.unit == "x" else human(value, claim.unit)
                return "A", f"{shown}, {record.origin}, {record.short}"
    return ("B", _value_of(*found[0])) if found else None


def _value_of(one: Evidence, value: float) -> str:
    """Return `108 GB, measured, NVIDIA H200, flash attention and checkpointing`."""
    shown = times(value) if one.is_ratio else human(value, one.judged.unit)
    device = next((run.device for run in one.runs), "") if one.grade == Origin.MEASURED else ""
    return ", ".join(filter(None, [shown, one.method or one.grade, device, one.group]))


def _predictions(evidence: Sequence[Evidence]) -> list[Share]:
    """Return the shares of predicted values, those of one judged claim together."""
    shares = []
    predicted = [one for one in evidence if one.strength == "B"]
    for claim, some in groupby(sorted(predicted, key=lambda one: one.claim), key=lambda one: one.claim):
        outcomes = [outcome for one in some for outcome in one.outcomes]
        decided = [outcome for outcome in outcomes if outcome != UNDECIDED]
        inside = decided.count(INSIDE) / len(decided) if decided else 0.0
        close = len(outcomes) - len(decided)
        near = f"; {close} too close to the edge to count" if close else ""
        shares.append(Share(f"predicted, {claim}{near}", inside, len(decided), "B"))
    return shares


def _context(claim: PaperClaim, evidence: Sequence[Evidence]) -> tuple[str, str, str]:
    """Return the answer where nothing decides."""
    if claim.untestable:
        return NO_EVIDENCE, "D", claim.untestable
    context = [one for one in evidence if one.grade != ILLUSTRATION]
    published = [one for one in claim.public if one.values and claim.band]
    if any(one.meets for one in context) or any(_public_share(claim, one).inside for one in published):
        return PLAUSIBLE, "C", _why_plausible(claim, context, published)
    if claim.not_built:
        return NO_EVIDENCE, "D", claim.not_built
    if not context and not published:
        return NO_EVIDENCE, "D", NOT_MEASURED
    grades = ", ".join(dict.fromkeys([*(one.grade for one in context), *["published"][: len(published)]]))
    return IMPLAUSIBLE, "C", f"all context ({grades}) lies outside the accepted band"


def _why_plausible(claim: PaperClaim, context: Sequence[Evidence], published: Sequence[PublicRecord]) -> str:
    """Return what of the context agrees with the claim."""
    if claim.band is None:
        return "no number is claimed; the context has the claimed direction"
    inside = [one for one in context if any(verdict.outcome == "holds" for verdict in one.verdicts)]
    if not inside and not any(_public_share(claim, one).inside for one in published):
        bounded = next((one.judged for one in context if one.is_bounded), None)
        if bounded is None:
            return "some intervals of the context reach into the accepted band"
        return f"the quoted {human(bounded.value, bounded.unit)} lies within our bounds"
    narrow = [text for one in inside if (text := _narrowly(one))]
    return "; ".join(["some of the context lies in the accepted band", *narrow])


def _narrowly(evidence: Evidence) -> str:
    """Return `252 GB by 0.01 % only` where even the value deepest in the band is close to its edge."""
    ends = [end for end in evidence.judged.accepted if math.isfinite(end)]
    if len(set(ends)) < 2:
        return ""
    distances = {
        min(abs(value / end - 1) for end in ends): value
        for one in evidence.verdicts
        if one.outcome == "holds" and (value := one.ours)
    }
    nearest = max(distances)
    unit = evidence.judged.unit
    return f"{human(distances[nearest], unit)} by {100 * nearest:.2f} % only" if nearest < NARROW else ""


def _public_share(claim: PaperClaim, record: PublicRecord) -> Share:
    if record.inside is not None:
        return Share(record.of, record.inside, record.n, "A", bound=record.bound)
    low, high = claim.band or (-math.inf, math.inf)
    inside = [low <= value <= high for value in record.values.values()]
    where = _where(record.values, inside) if record.origin == Origin.CALCULATED else ""
    return Share(record.of, sum(inside) / len(inside), len(inside), "A", where)


def _where(names: Iterable[str], inside: Sequence[bool]) -> str:
    """Return `ZeRO-2, N = 3 to 7` of successive names whose values lie inside."""
    runs = [
        [name for name, _ in run]
        for is_inside, run in groupby(zip(names, inside, strict=True), key=lambda one: one[1])
        if is_inside
    ]
    return "; ".join(f"{run[0]} to {run[-1].split()[-1]}" if len(run) > 1 else run[0] for run in runs)


def _decided(claim: PaperClaim, shares: Sequence[Share]) -> str:
    enough = HALF if claim.often else MOST
    if all(one.inside >= enough for one in shares):
        return CONFIRMED
    if all(one.inside <= 1 - MOST for one in shares):
        return CONTRADICTED
    return PARTLY


def _in_words(share: Share) -> str:
    """Return `46 % of 355 (fp32 to AMP on V100)`; of few values how many, of a formula where."""
    if share.where:
        return f"where {share.where} ({share.of})"
    if share.n < 20:
        return f"{round(share.inside * share.n)} of {share.n} ({share.of})"
    bound = f"{share.bound} " if share.bound else ""
    return f"{bound}{100 * share.inside:.0f} % of {share.n} ({share.of})"
