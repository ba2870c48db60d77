"""Answer each claim of the paper from verdicts and the public record, with one word of a closed list. Pure.

A claim is confirmed, partly so or contradicted only by evidence that could have failed: values measured on
its class of device, here or in public, or its source's own formula. Other evidence is context, which makes a
claim plausible and no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from harness.claims.model import Claim, Verdict
from harness.claims.paper import PaperClaim, PublicRecord
from harness.config.validation import ConfigError
from harness.records import Origin
from harness.units import human

CONFIRMED = "confirmed"
PARTLY = "partly"
CONTRADICTED = "contradicted"
MISQUOTED = "misquoted"
PLAUSIBLE = "plausible"
IMPLAUSIBLE = "implausible"
NO_EVIDENCE = "no evidence"
STRENGTHS = {
    CONFIRMED: "A",
    PARTLY: "A",
    CONTRADICTED: "A",
    MISQUOTED: "A",
    PLAUSIBLE: "C",
    IMPLAUSIBLE: "C",
    NO_EVIDENCE: "D",
}
"""How strong the evidence for each answer is.

A: values measured on the claim's class of device, here or in public, the source's own formula, or a quotation
that differs from its source. C: a mechanism, or another class of device. D: nothing.
"""
ANSWERS = tuple(STRENGTHS)

MOST = 0.9
"""Share of the deciding values inside a claim's band from which on it is confirmed; outside, contradicted."""

HALF = 0.5
"""The same where the claim says "often" or "common"."""

ILLUSTRATION = "illustration"
"""The grade of values that the set-up fixes beforehand: no evidence."""

FEWEST = 3
"""Values of a record below which it decides nothing."""

NARROW = 0.01
"""Relative distance to the edge of a band below which a value inside it is named with the distance."""


class Share(NamedTuple):
    """How many of the values that decide lie inside a claim's band."""

    of: str
    inside: float
    n: int
    where: str = ""  # of a formula: between which of its values


class Evidence(NamedTuple):
    """Our values on one judged claim that are of one group and were obtained in one way."""

    claim: str  # <suite>/<claim>
    judged: Claim
    group: str  # of its interpretations; "" where they have none
    grade: str  # in words
    decides: bool
    verdicts: tuple[Verdict, ...]  # with a value, each value once
    low: float
    high: float

    @property
    def is_ratio(self) -> bool:
        """Return whether the values are ratios of two variants."""
        return any(one.relative_to or one.order for one in self.judged.interpretations)

    @property
    def share(self) -> Share:
        """Return how many of the values that are not undecided lie inside the band."""
        decided = [one for one in self.verdicts if one.outcome != "undecided"]
        inside = sum(one.outcome == "holds" for one in decided) / len(decided) if decided else 0.0
        return Share(", ".join(filter(None, [self.grade, self.group, self.claim])), inside, len(decided))

    @property
    def meets(self) -> bool:
        """Return whether some value lies in the band, or its interval reaches into it."""
        return any(one.outcome in ("holds", "undecided") for one in self.verdicts)

    @property
    def is_bounded(self) -> bool:
        """Return whether the claim's value lies between our bounds, and neither bound in its band."""
        return any(one.basis == "bounds" and one.outcome == "undecided" for one in self.verdicts)


@dataclass(frozen=True, slots=True)
class AnsweredClaim:
    """A claim with its answer, why in a few words, and our evidence."""

    claim: PaperClaim
    answer: str  # one of ANSWERS
    why: str
    evidence: tuple[Evidence, ...]
    missing: tuple[str, ...] = ()  # judged claims of suites that the results lack

    @property
    def strength(self) -> str:
        """Return how strong the evidence is, a letter of STRENGTHS."""
        return STRENGTHS[self.answer]


Judged = Mapping[str, tuple[Claim, Sequence[Verdict]]]
"""The claims of conf/claims by <suite>/<id>, with the verdicts on their interpretations."""


def answer_claims(claims: Iterable[PaperClaim], judged: Judged) -> list[AnsweredClaim]:
    """Return each claim answered; raises ConfigError where one names a judged claim that does not exist."""
    return [_answered(claim, judged) for claim in claims]


def refuse_unknown(claims: Iterable[PaperClaim], known: Iterable[str]) -> None:
    """Raise ConfigError where a claim names a judged claim that is in no file of conf/claims."""
    names = set(known)
    for claim in claims:
        for name in claim.judged:
            if name not in names:
                raise ConfigError(f"answers.yaml ({claim.id}).judged: {name!r} is no claim of conf/claims")


def _answered(claim: PaperClaim, judged: Judged) -> AnsweredClaim:
    known = [name for name in claim.judged if name in judged]
    evidence = tuple(one for name in known for one in _evidence(name, *judged[name]))
    answer, why = _answer(claim, evidence)
    return AnsweredClaim(
        claim, answer, why, evidence, tuple(one for one in claim.judged if one not in judged)
    )


def _evidence(name: str, claim: Claim, verdicts: Sequence[Verdict]) -> list[Evidence]:
    """Return the values of a judged claim by group and the way they were obtained; each number once."""
    group_of = {one.name: one.group for one in claim.interpretations}
    groups: dict[tuple[str, str, bool], dict[tuple[float, ...], Verdict]] = {}
    for one in verdicts:
        if one.ours is None or one.low is None or one.high is None:
            continue
        key = group_of[one.interpretation], *_grade(claim, one)
        groups.setdefault(key, {}).setdefault((one.ours, one.low, one.high), one)
    return [
        Evidence(
            name,
            claim,
            group,
            grade,
            decides,
            tuple(values.values()),
            min(one.low for one in values.values() if one.low is not None),
            max(one.high for one in values.values() if one.high is not None),
        )
        for (group, grade, decides), values in groups.items()
    ]


def _grade(claim: Claim, verdict: Verdict) -> tuple[str, bool]:
    """Return in words how a value was obtained, and whether that decides."""
    if claim.not_judged:
        return ILLUSTRATION, False
    if verdict.where == "as stated":
        if verdict.origin == Origin.CALCULATED:
            return "by the source's own formula", True
        return str(verdict.origin), True
    if verdict.origin == Origin.MEASURED:
        return "measured on other hardware", False
    return str(verdict.origin), False


def _answer(claim: PaperClaim, evidence: Sequence[Evidence]) -> tuple[str, str]:
    """Return the answer and why, in a few words."""
    if claim.misquoted:
        missing = f"Not built: {claim.not_built}." if claim.not_built else ""
        return MISQUOTED, f"{claim.misquoted} {missing}".strip()
    shares = [_public_share(claim, one) for one in claim.public if one.decides]
    shares += [one.share for one in evidence if one.decides]
    shares = [one for one in shares if one.n >= FEWEST]
    if shares:
        return _decided(claim, shares), "; ".join(map(_in_words, shares))
    if claim.untestable:
        return NO_EVIDENCE, claim.untestable
    context = [one for one in evidence if one.grade != ILLUSTRATION]
    published = [one for one in claim.public if one.values and claim.band]
    if any(one.meets for one in context) or any(_public_share(claim, one).inside for one in published):
        return PLAUSIBLE, _why_plausible(claim, context, published)
    if claim.not_built:
        return NO_EVIDENCE, claim.not_built
    if not context and not published:
        return NO_EVIDENCE, "no run here measures it"
    grades = ", ".join(dict.fromkeys([*(one.grade for one in context), *["published"][: len(published)]]))
    return IMPLAUSIBLE, f"all context ({grades}) lies outside the accepted band"


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
        return Share(record.of, record.inside, record.n)
    low, high = claim.band or (-math.inf, math.inf)
    inside = [low <= value <= high for value in record.values.values()]
    where = _where(record.values, inside) if record.origin == Origin.CALCULATED else ""
    return Share(record.of, sum(inside) / len(inside), len(inside), where)


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
    return f"{100 * share.inside:.0f} % of {share.n} ({share.of})"
