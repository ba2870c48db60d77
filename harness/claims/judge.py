"""(claims, records) -> verdicts: compare each interpretation of each claim with what was recorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from harness.claims.comparisons import Order, order_of, order_outcome
from harness.claims.model import Claim, Difference, Interpretation, Verdict
from harness.claims.values import ClaimValue, NoValueError, RecordsByVariant, value_of
from harness.records import Origin, Record, Status

NOT_JUDGED = "not judged"
"""The difference of every value on a claim whose outcome the set-up fixes beforehand."""


def judge(claims: Iterable[Claim], records: Sequence[Record], points: bool = False) -> list[Verdict]:
    """Return one verdict per interpretation of each claim, in the order of the claims.

    `points`: values of which there are too few to have an interval are compared as they are.
    """
    cells: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        cell = record.cell
        cells.setdefault((cell.suite, cell.workload), {}).setdefault(cell.optimization, []).append(record)
    return [
        _verdict(claim, interpretation, cells.get((claim.suite, interpretation.workload), {}), points)
        for claim in claims
        for interpretation in claim.interpretations
    ]


def outcome(claim: Claim, low: float, high: float) -> str:
    """Compare the interval from `low` to `high` with the band that the claim accepts."""
    least, most = claim.accepted
    if least <= low and high <= most:
        return "holds"
    if low > most:
        return "exceeds"
    if high < least:
        return "falls short"
    return "undecided"


def differences(
    claim: Claim, recorded: Mapping[str, str], origin: str, status: str = Status.OK
) -> list[Difference]:
    """Return the conditions of a claim that a value does not meet.

    A stated condition may allow several values, separated by ` | `, and patterns (`*A100*`). Only values that
    were measured, here or in public, meet a claim, and those of its source's own formula.
    """
    differ, stated = [], claim.conditions
    allowed = [Origin.MEASURED, Origin.PUBLISHED, *([Origin.CALCULATED] if claim.formula else [])]
    if origin not in allowed:
        differ.append(Difference("origin", origin, Origin.MEASURED.value))
    if claim.not_judged:
        differ.append(Difference(NOT_JUDGED, claim.not_judged, ""))
    for name, value in stated.items():
        if name not in recorded or not is_met(recorded[name], value):
            differ.append(Difference(name, recorded.get(name, ""), value))
    if status != Status.OK:
        differ.append(Difference("status", status, Status.OK.value))
    return differ


def is_met(recorded: str, stated: str) -> bool:
    """Return whether a recorded condition is one that a claim states; see `differences`."""
    return any(_meets(recorded, allowed) for allowed in stated.split(" | "))


def _meets(recorded: str, allowed: str) -> bool:
    return fnmatchcase(recorded, allowed) if "*" in allowed else recorded == allowed


def _verdict(claim: Claim, interpretation: Interpretation, cells: RecordsByVariant, points: bool) -> Verdict:
    try:
        if interpretation.order:
            return _ordered(claim, interpretation, order_of(interpretation, cells))
        return _compared(claim, interpretation, value_of(claim, interpretation, cells, points))
    except NoValueError as error:
        records = cells.get(interpretation.variant, ())
        return Verdict(
            claim=claim.id,
            interpretation=interpretation.name,
            outcome="unavailable",
            where="",
            unit=claim.unit,
            cell=error.cell or (records[0].cell.id if records else ""),
            reason=str(error),
        )


def _compared(claim: Claim, interpretation: Interpretation, value: ClaimValue) -> Verdict:
    differ = differences(claim, value.conditions, value.origin, value.record.status)
    return Verdict(
        claim=claim.id,
        interpretation=interpretation.name,
        outcome=outcome(claim, value.low, value.high),
        where="elsewhere" if differ else "as stated",
        unit=claim.unit,
        ours=value.ours,
        low=value.low,
        high=value.high,
        ratio=None if claim.upper is not None or value.basis == "bounds" else value.ours / claim.value,
        origin=value.origin,
        cell=value.record.cell.id,
        differs=tuple(differ),
        basis=value.basis,
        processes=value.processes,
        samples=value.samples,
        noise=value.noise,
    )


def _ordered(claim: Claim, interpretation: Interpretation, order: Order) -> Verdict:
    """Return the verdict of the smallest step, with the cell of its later variant."""
    differ = _differences_of_variants(claim, order)
    least = order.least
    return Verdict(
        claim=claim.id,
        interpretation=interpretation.name,
        outcome=order_outcome(claim, order.steps),
        where="elsewhere" if differ else "as stated",
        unit=claim.unit,
        ours=least.ratio,
        low=least.low,
        high=least.high,
        ratio=least.ratio / claim.value,
        origin=order.origin,
        cell=order.records[least.after][0].cell.id,
        differs=tuple(differ),
        basis=least.basis,
        processes=least.processes,
        samples=least.samples,
        noise=order.noise,
        steps=order.steps,
    )


def _differences_of_variants(claim: Claim, order: Order) -> list[Difference]:
    """Return what differs in any record of any variant; names the variants unless all of them differ."""
    variants: dict[Difference, dict[str, None]] = {}
    for variant, records in order.records.items():
        for record in records:
            for difference in differences(claim, record.conditions, order.origin, record.status):
                variants.setdefault(difference, {})[variant] = None
    every = len(order.records)
    return [
        difference if len(of) == every else difference._replace(variants=tuple(of))
        for difference, of in variants.items()
    ]
