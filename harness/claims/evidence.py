"""Gather what our results say of a claim, by how strong it is: measured, predicted with known error, or less.

`harness.claims.answers` makes one word of it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.claims.model import Claim, Verdict
from harness.records import Origin

ILLUSTRATION = "illustration"
"""The grade of values that the set-up fixes beforehand: no evidence."""

TIMES_FARTHER = 3
"""How many times farther than the method's largest error a predicted value must be from the band's edge."""

INSIDE, OUTSIDE, UNDECIDED = "inside", "outside", "undecided"
OUTCOMES = {"holds": INSIDE, "exceeds": OUTSIDE, "falls short": OUTSIDE}


class MethodError(NamedTuple):
    """How far predictions of one method were off on measurements of others."""

    name: str
    predicts: Sequence[str]  # suites, or claims of them as <suite>/<claim>
    origin: str  # of the values that it predicts
    known_from: str
    errors: Sequence[float]  # (predicted - measured) / measured; none where no such record is known

    @property
    def worst(self) -> float:
        """Return the largest error, without its sign."""
        return max(map(abs, self.errors))

    def __str__(self) -> str:
        """Return `the dry run, at most 1.9 % off on 41 published peaks`."""
        if not self.errors:
            return f"{self.name}, whose error is not known: no {self.known_from}"
        return f"{self.name}, at most {100 * self.worst:.2g} % off on {len(self.errors)} {self.known_from}"


class Obtained(NamedTuple):
    """Where and when a value of ours was obtained."""

    folder: str
    device: str
    day: str


class Share(NamedTuple):
    """How many of the values that decide lie inside a claim's band."""

    of: str
    inside: float
    n: int
    strength: str
    where: str = ""  # of a formula: between which of its values
    bound: str = ""  # at least | at most, where `inside` is a bound


class Evidence(NamedTuple):
    """Our values on one judged claim that are of one group and were obtained in one way."""

    claim: str  # <suite>/<claim>
    judged: Claim
    group: str  # of its interpretations; "" where they have none
    grade: str  # in words
    strength: str  # A, B or C
    verdicts: tuple[Verdict, ...]  # with a value, each value once
    outcomes: tuple[str, ...]  # of each: INSIDE, OUTSIDE or UNDECIDED
    low: float
    high: float
    runs: tuple[Obtained, ...] = ()
    method: str = ""  # of a prediction: the method with its error, or without one

    @property
    def decides(self) -> bool:
        """Return whether its values can confirm or contradict."""
        return self.strength in ("A", "B")

    @property
    def is_ratio(self) -> bool:
        """Return whether the values are ratios of two variants."""
        return any(one.relative_to or one.order for one in self.judged.interpretations)

    @property
    def share(self) -> Share:
        """Return how many of the values that are not undecided lie inside the band."""
        decided = [one for one in self.outcomes if one != UNDECIDED]
        inside = decided.count(INSIDE) / len(decided) if decided else 0.0
        of = ", ".join(filter(None, [self.grade, self.group, self.claim]))
        return Share(of, inside, len(decided), self.strength)

    @property
    def meets(self) -> bool:
        """Return whether some value lies in the band, or its interval reaches into it."""
        return any(one.outcome in ("holds", "undecided") for one in self.verdicts)

    @property
    def is_bounded(self) -> bool:
        """Return whether the claim's value lies between our bounds, and neither bound in its band."""
        return any(one.basis == "bounds" and one.outcome == "undecided" for one in self.verdicts)


Judged = Mapping[str, tuple[Claim, Sequence[Verdict]]]
"""The claims of conf/claims by <suite>/<id>, with the verdicts on their interpretations."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All that our results say: verdicts on judged claims, their runs, and errors of predictions."""

    judged: Judged
    runs: Mapping[str, Obtained]  # by cell
    methods: Sequence[MethodError] = ()


def evidence_of(name: str, findings: Findings) -> list[Evidence]:
    """Return the values of a judged claim by group and the way they were obtained; each number once."""
    claim, verdicts = findings.judged[name]
    group_of = {one.name: one.group for one in claim.interpretations}
    groups: dict[tuple[str, str, str, str], dict[tuple[float, ...], tuple[Verdict, str]]] = {}
    for one in verdicts:
        if one.ours is None or one.low is None or one.high is None:
            continue
        grade, strength = _grade(claim, one)
        outcome, predictor = OUTCOMES.get(one.outcome, UNDECIDED), ""
        if strength == "C" and (method := _predicted(name, one, findings)) and grade != ILLUSTRATION:
            predictor = str(method)
            if method.errors:
                outcome = _beyond(claim, one.low, one.high, TIMES_FARTHER * method.worst)
                strength = "B"
        key = group_of[one.interpretation], grade, strength, predictor
        groups.setdefault(key, {}).setdefault((one.ours, one.low, one.high), (one, outcome))
    return [
        Evidence(
            name,
            claim,
            group,
            grade,
            strength,
            tuple(verdict for verdict, _ in values.values()),
            tuple(outcome for _, outcome in values.values()),
            min(one.low for one, _ in values.values() if one.low is not None),
            max(one.high for one, _ in values.values() if one.high is not None),
            tuple(
                dict.fromkeys(
                    findings.runs[one.cell] for one, _ in values.values() if one.cell in findings.runs
                )
            ),
            predictor,
        )
        for (group, grade, strength, predictor), values in groups.items()
    ]


def _grade(claim: Claim, verdict: Verdict) -> tuple[str, str]:
    """Return in words how a value was obtained, and its strength."""
    if claim.not_judged:
        return ILLUSTRATION, "C"
    if verdict.where == "as stated":
        if verdict.origin == Origin.CALCULATED:
            return "by the source's own formula", "A"
        return str(verdict.origin), "A"
    if verdict.origin == Origin.MEASURED:
        return "measured on other hardware", "C"
    return str(verdict.origin), "C"


def _predicted(name: str, verdict: Verdict, findings: Findings) -> MethodError | None:
    """Return the method that predicted a value under the claim's own conditions; None for no such method."""
    if any(one.condition != "origin" for one in verdict.differs):
        return None
    suite = name.partition("/")[0]
    return next(
        (
            one
            for one in findings.methods
            if {suite, name} & set(one.predicts) and one.origin == verdict.origin
        ),
        None,
    )


def _beyond(claim: Claim, low: float, high: float, margin: float) -> str:
    """Return on which side of the band's edges an interval lies when it is widened by a relative margin."""
    first, last = claim.accepted
    low, high = low * (1 - margin), high * (1 + margin)
    if first <= low and high <= last:
        return INSIDE
    return OUTSIDE if high < first or last < low else UNDECIDED
