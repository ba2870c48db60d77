"""Answer each claim of the paper from verdicts and the public record, with one word of a closed list. Pure.

The strength of the evidence stands next to the word. A: values measured on the claim's class of device, here
or in public, the source's own formula, or a quotation that differs from its source. B: predicted by a method
whose error on measurements of others, out of sample, is known and several times smaller than the distance to
the claim's band. C: a mechanism, or another class of device; it makes a claim plausible, implausible or
undecided and no more. D: nothing.

A word that another run of the same sweep would turn is no answer: each is computed from two halves of the
processes too, and is "undecided" where they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from harness.claims.evidence import (
    ILLUSTRATION,
    INSIDE,
    OUTSIDE,
    Evidence,
    Findings,
    Share,
    evidence_of,
    share_of,
    side,
)
from harness.claims.model import Verdict
from harness.claims.paper import UNIT_OF, PaperClaim, PublicRecord
from harness.claims.values import NO_INTERVAL
from harness.records import Origin
from harness.units import billions, counted, human, times

CONFIRMED = "confirmed"
PARTLY = "partly"
CONTRADICTED = "contradicted"
MISQUOTED = "misquoted"
PLAUSIBLE = "plausible"
IMPLAUSIBLE = "implausible"
NOT_DECIDED = "undecided"
NO_EVIDENCE = "no evidence"
ANSWERS = (CONFIRMED, PARTLY, CONTRADICTED, MISQUOTED, PLAUSIBLE, IMPLAUSIBLE, NOT_DECIDED, NO_EVIDENCE)

NOT_MEASURED = "no run here measures it"
WITHOUT_INTERVAL = "the values of this run have no interval: it needs more repeats"

MOST = 0.9
"""Share of the deciding values inside a claim's band from which on it is confirmed; outside, contradicted.
Of context, the share outside from which on a claim is implausible; above one half where it says "often"."""

HALF = 0.5
"""The same where the claim says "often" or "common". Of context, the share inside above which a claim is
plausible."""

FEWEST = 3
"""Values below which a record decides nothing, and context is undecided. But one counterexample decides on a
universal claim, and one example on an existence claim."""


class Judgement(NamedTuple):
    """The word, its strength, and why in a few words."""

    word: str  # one of ANSWERS
    strength: str  # A, B, C or D
    why: str


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
    would_decide: str = ""  # of one that is not decided: what would


def answer_claims(
    claims: Iterable[PaperClaim], findings: Findings, halves: Sequence[Findings] = ()
) -> list[AnsweredClaim]:
    """Return each claim answered. `halves`: the findings of each half of the same results' processes."""
    return [_answered(claim, findings, halves) for claim in claims]


def _answered(claim: PaperClaim, findings: Findings, halves: Sequence[Findings]) -> AnsweredClaim:
    evidence = _evidence(claim, findings)
    answer = _stable(claim, _answer(claim, evidence), halves)
    known = [name for name in claim.judged if name in findings.judged]
    missing = tuple(one for one in (*claim.judged, *claim.related) if one not in findings.judged)
    verdicts = [verdict for name in known for verdict in findings.judged[name][1]]
    if answer.why == NOT_MEASURED and any(one.reason.startswith(NO_INTERVAL) for one in verdicts):
        answer = answer._replace(why=WITHOUT_INTERVAL)
    open_ = answer.strength in ("C", "D")
    return AnsweredClaim(
        claim,
        *answer,
        evidence=tuple(evidence),
        missing=missing,
        lacking="" if evidence else _lacking(verdicts, missing),
        would_decide=claim.would_decide or _what_decides(evidence) if open_ else "",
    )


def _evidence(claim: PaperClaim, findings: Findings) -> list[Evidence]:
    """Return our evidence, the best first, with what is about another quantity after it."""
    evidence = [
        one
        for names, related in ((claim.judged, False), (claim.related, True))
        for name in names
        if name in findings.judged
        for one in evidence_of(name, findings, related)
    ]
    return sorted(evidence, key=lambda one: (one.related, one.strength, one.grade == ILLUSTRATION))


def _stable(claim: PaperClaim, answer: Judgement, halves: Sequence[Findings]) -> Judgement:
    """Return the answer, or that it is undecided where the halves of the processes give other words."""
    if answer.word in (MISQUOTED, NO_EVIDENCE):
        return answer
    words = dict.fromkeys(_answer(claim, _evidence(claim, half)).word for half in halves)
    if words.keys() <= {answer.word}:
        return answer
    turned = f"all processes give {answer.word}, the halves of them {' and '.join(words)}"
    return Judgement(NOT_DECIDED, "C", f"{turned}: {answer.why}")


def _lacking(verdicts: Sequence[Verdict], missing: Sequence[str]) -> str:
    """Return the first reason why there is no value, and how many others there are."""
    found = [one.reason for one in verdicts if one.reason]
    found = [WITHOUT_INTERVAL if one.startswith(NO_INTERVAL) else one for one in found]
    found += [f"no results of suite {name.partition('/')[0]}" for name in missing]
    first, *others = dict.fromkeys(found or [""])
    return f"{first}, and {counted(len(others), 'more reason')}" if others else first


def _what_decides(evidence: Sequence[Evidence]) -> str:
    """Return the run that would decide: `suite=profiling on *MI300X*`, under the claim's own conditions."""
    judged = next((one.judged for one in evidence if not one.related and one.grade != ILLUSTRATION), None)
    if judged is None:
        return ""
    device = judged.conditions.get("device_name", "").replace("*", " ").strip().replace(" | ", " or ")
    device = device or {"cuda": "GPUs"}.get(judged.conditions.get("device", ""), "the claim's own hardware")
    return f"suite={judged.suite} on {' '.join(device.split())}"


def _answer(claim: PaperClaim, evidence: Sequence[Evidence]) -> Judgement:
    evidence = [one for one in evidence if not one.related]
    if claim.misquoted:
        missing = f"Not built: {claim.not_built}." if claim.not_built else ""
        return Judgement(MISQUOTED, "A", f"{claim.misquoted} {missing}".strip())
    if claim.universal and (found := _first(claim, evidence, OUTSIDE)):
        return Judgement(CONTRADICTED, *found)
    if claim.exists and (found := _first(claim, evidence, INSIDE)):
        return Judgement(CONFIRMED, *found)
    shares = [_public_share(claim, one) for one in claim.public if one.decides]
    shares += [one.share for one in evidence if one.strength == "A"]
    for strength, some in (("A", shares), ("B", _predictions(evidence))):
        if enough := [one for one in some if _is_enough(one)]:
            if claim.universal or claim.exists:
                looked_at = "; ".join(f"{one.n} ({one.of})" for one in some if one.n)
                if claim.universal:
                    return Judgement(PLAUSIBLE, "C", f"no counterexample in {looked_at}")
                return Judgement(NOT_DECIDED, "C", f"no example in {looked_at}")
            said = "; ".join(_in_words(one) for one in some if one.n)
            methods = dict.fromkeys(one.method for one in evidence if one.strength == strength and one.method)
            return Judgement(_decided(claim, enough, some), strength, "; ".join([said, *methods]))
    return _context(claim, evidence)


def _is_enough(share: Share) -> bool:
    """Return whether values decide: three, and no fewer than lie too close to an edge; a formula always."""
    return share.is_formula or share.n >= max(FEWEST, share.close)


def _first(claim: PaperClaim, evidence: Sequence[Evidence], outcome: str) -> tuple[str, str] | None:
    """Return the strength of the best value with an outcome, and what it is: measured before published."""

    best_first = sorted(evidence, key=lambda one: (one.strength, one.grade != Origin.MEASURED))
    found = [
        (one, verdict.ours)
        for one in best_first
        for verdict, its in zip(one.verdicts, one.outcomes, strict=True)
        if one.decides and its == outcome and verdict.ours is not None
    ]
    if found and found[0][0].strength == "A":
        return "A", _value_of(*found[0])
    for record in claim.public:
        for name, value in record.values.items():
            if record.decides and claim.band and side(claim.band, value, value) == outcome:
                return "A", f"{_shown(value, claim.unit)}, {record.origin}, {name}"
    return ("B", _value_of(*found[0])) if found else None


def _shown(value: float, unit: str) -> str:
    if unit == "parameters":
        return billions(value)
    if unit == "%":
        return f"{100 * value:.3g} %"
    return times(value) if unit == "x" else human(value, UNIT_OF.get(unit, unit))


def _value_of(one: Evidence, value: float) -> str:
    """Return `108 GB, measured, NVIDIA H200, flash attention and checkpointing`."""
    shown = times(value) if one.is_ratio else human(value, one.judged.unit)
    device = next((run.device for run in one.runs), "") if one.grade == Origin.MEASURED else ""
    return ", ".join(filter(None, [shown, one.method or one.grade, device, one.group]))


def _predictions(evidence: Sequence[Evidence]) -> list[Share]:
    """Return the shares of predicted values, those of one judged claim together."""
    predicted = sorted((one for one in evidence if one.strength == "B"), key=lambda one: one.claim)
    shares = []
    for _, some in groupby(predicted, key=lambda one: one.claim):
        first, *others = some
        outcomes = [outcome for one in (first, *others) for outcome in one.outcomes]
        shares.append(share_of(f"predicted, {first.judged.quoted_by}", outcomes))
    return shares


def _context(claim: PaperClaim, evidence: Sequence[Evidence]) -> Judgement:
    """Return what most of the values under the claim's own conditions say, where nothing decides."""
    if claim.untestable:
        return Judgement(NO_EVIDENCE, "D", claim.untestable)
    published = [one for one in claim.public if one.values and claim.band and not one.own]
    outcomes = [outcome for one in evidence for outcome in one.context]
    values = [value for one in published for value in one.values.values()]
    outcomes += [side(claim.band, value, value) for value in values if claim.band]
    if not outcomes:
        others = [one for one in evidence if one.grade != ILLUSTRATION]
        if untested := next((one.method for one in others if one.is_untested), ""):
            return Judgement(NOT_DECIDED, "C", untested)
        if others:
            return Judgement(NOT_DECIDED, "C", "no value was found under the claim's own conditions")
        return Judgement(NO_EVIDENCE, "D", claim.not_built or NOT_MEASURED)
    inside, outside, n = outcomes.count(INSIDE), outcomes.count(OUTSIDE), len(outcomes)
    most = inside == n if claim.universal else inside > HALF * n
    far = not claim.exists and (outside > HALF * n if claim.often else outside >= MOST * n)
    word = NOT_DECIDED if n < FEWEST else PLAUSIBLE if most else IMPLAUSIBLE if far else NOT_DECIDED
    grades = dict.fromkeys(
        [*(one.grade for one in evidence if one.context), *["published"] * bool(published)]
    )
    closed = claim.band or all(math.isfinite(end) for one in evidence for end in one.judged.accepted)
    where = "in the accepted band" if closed else "on the claimed side"
    outward = f", {outside} outside" if outside and n - inside - outside else ""
    return Judgement(word, "C", f"{inside} of {n} values {where}{outward} ({', '.join(grades)})")


def _public_share(claim: PaperClaim, record: PublicRecord) -> Share:
    assert claim.band is not None  # refused where it decides without one
    # Named values of a formula may lie on an edge; published ones lie on a side or on none.
    outcomes = [side(claim.band, value, value) for value in record.values.values()]
    share = share_of(record.of, outcomes)
    if record.origin == "published":
        return share
    where = _where(record.values, [one == INSIDE for one in outcomes])
    return share._replace(close=0, where=where, is_formula=True)


def _where(names: Iterable[str], inside: Sequence[bool]) -> str:
    """Return `ZeRO-2, N = 3 to 7` of successive names whose values lie inside."""
    runs = [
        [name for name, _ in run]
        for is_inside, run in groupby(zip(names, inside, strict=True), key=lambda one: one[1])
        if is_inside
    ]
    return "; ".join(f"{run[0]} to {run[-1].split()[-1]}" if len(run) > 1 else run[0] for run in runs)


def _decided(claim: PaperClaim, shares: Sequence[Share], every: Sequence[Share]) -> str:
    """Return the word of the shares that decide; of `every`, those of too few values stand against it."""
    enough = HALF if claim.often else MOST
    if all(one.inside >= enough * one.n for one in shares):
        return CONFIRMED if all(one.inside for one in every if one.n) else PARTLY
    if all(one.inside <= (1 - MOST) * one.n for one in shares):
        return CONTRADICTED if all(one.inside < one.n for one in every if one.n) else PARTLY
    return PARTLY


def _in_words(share: Share) -> str:
    """Return `46 % of 355 (fp32 to AMP on V100)`; of few values how many, of a formula where."""
    if share.where:
        return f"where {share.where} ({share.of})"
    of = f"{share.of}; {share.close} more too close to the edge" if share.close else share.of
    if share.n < 20:
        return f"{share.inside} of {share.n} ({of})"
    return f"{100 * share.inside / share.n:.0f} % of {share.n} ({of})"
