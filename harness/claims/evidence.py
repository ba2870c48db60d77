"""Gather what our results say of a claim, by how strong it is: measured, predicted with known error, or less.

`harness.claims.answers` makes one word of it. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.claims.model import Claim, Interpretation, Verdict
from harness.records import Origin

ILLUSTRATION = "illustration"  # the grade of values that the set-up fixes beforehand: no evidence
TIMES_FARTHER = 3  # times the method's largest error that a predicted value must be from the band's edge
HAIR = 0.01  # relative distance to the edge of a band below which a value lies on neither side
ANOTHER_CLASS = frozenset(("origin", "device", "device_name", "network", "fabric"))
"""Differences that make a value context. One that differs in nothing else has the claim's own conditions."""

INSIDE, OUTSIDE, UNDECIDED = "inside", "outside", "undecided"


class MethodError(NamedTuple):
    """How far predictions of one method were off on measurements of others, out of sample."""

    name: str
    predicts: Sequence[str]  # suites, or claims of them as <suite>/<claim>
    origin: str  # of the values that it predicts
    known_from: str
    errors: Sequence[float]  # (predicted - measured) / measured; none where no such record is known
    metrics: Sequence[str] = ()  # those that it predicts; () for all

    @property
    def worst(self) -> float:
        """Return the largest error, without its sign."""
        return max(map(abs, self.errors))

    def __str__(self) -> str:
        """Return `the dry run, at most 1.9 % off on 12 published peaks`."""
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
    inside: int
    n: int  # of those on either side
    close: int = 0  # those on neither
    where: str = ""  # of a formula: between which of its values
    is_formula: bool = False  # the source's own, which needs no number of values


def share_of(of: str, outcomes: Sequence[str]) -> Share:
    """Return how many of the outcomes that are not undecided are inside."""
    close = outcomes.count(UNDECIDED)
    return Share(of, outcomes.count(INSIDE), len(outcomes) - close, close)


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
    related: bool = False  # about another quantity than the claim: shown, never counted

    @property
    def decides(self) -> bool:
        """Return whether its values can confirm or contradict."""
        return self.strength in ("A", "B") and not self.related

    @property
    def is_untested(self) -> bool:
        """Return whether its values are predicted by a method whose error these results do not know."""
        return bool(self.method) and self.strength == "C"

    @property
    def is_ratio(self) -> bool:
        """Return whether the values are ratios of two variants."""
        return any(one.relative_to or one.order for one in self.judged.interpretations)

    @property
    def median(self) -> float:
        """Return the median of its values."""
        return statistics.median(one.ours for one in self.verdicts if one.ours is not None)

    @property
    def share(self) -> Share:
        """Return how many of the values that are not undecided lie inside the band."""
        return share_of(", ".join(filter(None, [self.grade, self.group])), self.outcomes)

    @property
    def context(self) -> list[str]:
        """Return outcomes of values under all conditions but the device's, by methods of known error."""
        if self.related or self.grade == ILLUSTRATION or self.is_untested:
            return []
        each = zip(self.verdicts, self.outcomes, strict=True)
        return [outcome for of, outcome in each if {one.condition for one in of.differs} <= ANOTHER_CLASS]


Judged = Mapping[str, tuple[Claim, Sequence[Verdict]]]  # of <suite>/<id>, with verdicts


@dataclass(frozen=True, slots=True)
class Findings:
    """All that our results say: verdicts on judged claims, their runs, and errors of predictions."""

    judged: Judged
    runs: Mapping[str, Obtained]  # by cell
    methods: Sequence[MethodError] = ()


def evidence_of(name: str, findings: Findings, related: bool = False) -> list[Evidence]:
    """Return the values of a judged claim by group and the way they were obtained; each of them once."""
    claim, verdicts = findings.judged[name]
    interpretations = {one.name: one for one in claim.interpretations}
    groups: dict[tuple[str, str, str, str], dict[tuple[object, ...], tuple[Verdict, str]]] = {}
    for one in verdicts:
        if one.ours is None or one.low is None or one.high is None:
            continue
        interpretation = interpretations[one.interpretation]
        grade, strength = _grade(claim, one)
        margin, predictor = HAIR, ""
        method = _predicted(name, interpretation, one, findings)
        if strength == "C" and method and grade != ILLUSTRATION:
            predictor = str(method)
            if method.errors:
                margin, strength = TIMES_FARTHER * method.worst, "B"
        outcome = _outcome(claim, one, margin)
        key = interpretation.group, grade, strength, predictor
        # Two names of one interpretation are one value; two workloads of the same value are two.
        groups.setdefault(key, {}).setdefault(_value_key(interpretation), (one, outcome))
    evidence = []
    for (group, grade, strength, predictor), values in groups.items():
        its, outcomes = zip(*values.values(), strict=True)
        low, high = min(one.low for one in its), max(one.high for one in its)
        runs = tuple(dict.fromkeys(findings.runs[one.cell] for one in its if one.cell in findings.runs))
        how = grade, strength, its, outcomes, low, high, runs, predictor
        evidence.append(Evidence(name, claim, group, *how, related))
    return evidence


def _value_key(one: Interpretation) -> tuple[object, ...]:
    what = one.metric, one.method, one.workload, one.variant, one.divide_by, one.relative_to, one.stat
    return *what, one.order


def _outcome(claim: Claim, verdict: Verdict, margin: float) -> str:
    """Return where a verdict's value lies; a step that is exactly 1 is no increase."""
    assert verdict.low is not None
    assert verdict.high is not None
    if verdict.steps and verdict.low == verdict.high == claim.accepted[0]:
        return OUTSIDE
    return side(claim.accepted, verdict.low, verdict.high, margin)


def side(band: tuple[float, float], low: float, high: float, margin: float = HAIR) -> str:
    """Return where an interval, widened by a margin, lies to a band; a value on an edge lies inside."""
    first, last = band
    if margin <= HAIR and low == high and low in band:
        return INSIDE
    wide_low, wide_high = low - margin * abs(low), high + margin * abs(high)
    if first <= wide_low and wide_high <= last:
        return INSIDE
    return OUTSIDE if wide_high < first or last < wide_low else UNDECIDED


def _grade(claim: Claim, verdict: Verdict) -> tuple[str, str]:
    if claim.not_judged:
        return ILLUSTRATION, "C"
    if verdict.where == "as stated":
        calculated = verdict.origin == Origin.CALCULATED
        return "by the source's own formula" if calculated else str(verdict.origin), "A"
    measured = verdict.origin == Origin.MEASURED
    return "measured on other hardware" if measured else str(verdict.origin), "C"


def _predicted(
    name: str, interpretation: Interpretation, verdict: Verdict, findings: Findings
) -> MethodError | None:
    """Return the method that predicted a value under the claim's own conditions; None for no such method."""
    of = {name.partition("/")[0], name}
    for one in findings.methods:
        predicts_it = of & {*one.predicts} and interpretation.metric in (
            one.metrics or [interpretation.metric]
        )
        if predicts_it and one.origin == verdict.origin:
            return None if any(each.condition != "origin" for each in verdict.differs) else one
    return None
