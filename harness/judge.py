"""(claims, records) -> verdicts: each reading of each claim held against what was recorded. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from harness.claim_values import Cells, Figure, NoFigureError, figure_of
from harness.monotonic_claims import Order, order_of, order_outcome, order_sentence
from harness.records import Claim, Interpretation, Origin, Record, Status, Verdict
from harness.units import human

DEVICE = "device"
"""The condition by which a claim says that it is about hardware."""


def judge(claims: Iterable[Claim], records: Sequence[Record]) -> list[Verdict]:
    """One verdict for each reading of each claim, in the order of the claims."""
    cells: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        cell = record.cell
        cells.setdefault((cell.suite, cell.workload), {}).setdefault(cell.optimization, []).append(record)
    return [
        _verdict(claim, reading, cells.get((claim.suite, reading.workload), {}))
        for claim in claims
        for reading in claim.readings
    ]


def outcome(claim: Claim, low: float, high: float) -> str:
    """Where the interval from `low` to `high` lies against what counts as the claim's figure."""
    floor = -math.inf if claim.relation == "at_most" else claim.value * (1 - claim.tolerance)
    ceiling = math.inf if claim.relation == "at_least" else _upper(claim) * (1 + claim.tolerance)
    if floor <= low and high <= ceiling:
        return "holds"
    if low > ceiling:
        return "exceeds"
    if high < floor:
        return "falls short"
    return "undecided"


def _upper(claim: Claim) -> float:
    return claim.value if claim.upper is None else claim.upper


def differences(
    stated: Mapping[str, str], found: Mapping[str, str], origin: str, status: str = "ok"
) -> list[str]:
    """In words, what keeps a figure from standing under the conditions a claim states.

    A stated condition may allow several values, apart by ` | `, and patterns (`*A100*`). A claim that states
    a `device` is about hardware: only a figure measured on that kind of device meets it.
    """
    differ = []
    if DEVICE in stated and origin != Origin.MEASURED:
        differ.append(f"{origin}, not measured")
    for name, value in stated.items():
        allowed = value.split(" | ")
        words = " or ".join(one.replace("*", "") for one in allowed)
        if name not in found:
            differ.append(f"{name} not recorded, the claim has {words}")
        elif not any(_meets(found[name], one) for one in allowed):
            differ.append(f"{name} {found[name]}, the claim has {words}")
    if status != Status.OK:
        differ.append(f"the cell ended as {status.replace('_', ' ')}")
    return differ


def _meets(found: str, allowed: str) -> bool:
    return fnmatchcase(found, allowed) if "*" in allowed else found == allowed


def _verdict(claim: Claim, reading: Interpretation, cells: Cells) -> Verdict:
    try:
        if reading.order:
            return _ordered(claim, reading, order_of(reading, cells))
        return _compared(claim, reading, figure_of(claim, reading, cells))
    except NoFigureError as reason:
        records = cells.get(reading.optimization, ())
        return Verdict(
            claim.id,
            reading.name,
            "unavailable",
            "",
            None,
            None,
            None,
            None,
            claim.unit,
            "",
            reason.cell or (records[0].cell.id if records else ""),
            (),
            f"No figure for “{reading.name}”: {reason}.",
        )


def _compared(claim: Claim, reading: Interpretation, figure: Figure) -> Verdict:
    differ = differences(claim.conditions, figure.conditions, figure.origin, figure.record.status)
    found = outcome(claim, figure.low, figure.high)
    return Verdict(
        claim=claim.id,
        reading=reading.name,
        outcome=found,
        where="elsewhere" if differ else "as stated",
        ours=figure.ours,
        low=figure.low,
        high=figure.high,
        ratio=figure.ours / claim.value,
        unit=claim.unit,
        origin=figure.origin,
        cell=figure.record.cell.id,
        differs=tuple(differ),
        sentence=_sentence(claim, reading, figure, found),
    )


def _ordered(claim: Claim, reading: Interpretation, order: Order) -> Verdict:
    """Ours is the smallest step, its cell the one that it leads to."""
    differ = _differences_of_arms(claim.conditions, order)
    found = order_outcome(claim, order.steps)
    least = order.least
    return Verdict(
        claim=claim.id,
        reading=reading.name,
        outcome=found,
        where="elsewhere" if differ else "as stated",
        ours=least.ratio,
        low=least.low,
        high=least.high,
        ratio=least.ratio / claim.value,
        unit=claim.unit,
        origin=order.origin,
        cell=order.records[least.after][0].cell.id,
        differs=tuple(differ),
        sentence=order_sentence(claim, reading, order, found),
    )


def _differences_of_arms(stated: Mapping[str, str], order: Order) -> list[str]:
    """What differs in any record of any variant, with the variants where it is not all of them."""
    variants: dict[str, dict[str, None]] = {}
    for variant, records in order.records.items():
        for record in records:
            for text in differences(stated, record.conditions, order.origin, record.status):
                variants.setdefault(text, {})[variant] = None
    every = len(order.records)
    return [text if len(of) == every else f"{text} ({', '.join(of)})" for text, of in variants.items()]


def _sentence(claim: Claim, reading: Interpretation, figure: Figure, found: str) -> str:
    """What an engineer reads: the figure, its origin, how it stands to the quoted one.

    To a range, it is held against its lower end.
    """
    shown = "x" if reading.against else None
    per = f" per {reading.per.removesuffix('s')}" if reading.per else ""
    ours = human(figure.ours, claim.unit, shown) + per
    low, high = (human(end, claim.unit, shown) for end in (figure.low, figure.high))
    if figure.low != figure.high and not (reading.against and low == high):
        ours += f", from {low} to {high}"
    origin = f"{figure.origin}, {figure.told}" if figure.told else figure.origin
    quoted = human(claim.value, claim.unit, shown)
    bound = {"about": "", "at_least": "at least ", "at_most": "at most ", "within": ""}[claim.relation]
    if claim.upper is not None:
        bound, quoted = "lower end of ", f"{quoted} to {human(claim.upper, claim.unit, shown)}"
    against = f"{figure.ours / claim.value:.2f} of the {bound}{quoted}{per} quoted"
    warning = f"; {figure.warning}" if figure.warning else ""
    return f"{reading.text} {ours} ({origin}), {against}: {_end(claim, reading, found)}{warning}."


def _end(claim: Claim, reading: Interpretation, found: str) -> str:
    bounded = claim.relation in ("at_least", "at_most")
    spread = "the interval lies" if reading.against or reading.at == "mean" else "the samples lie"
    return {
        "holds": "the claim holds",
        "exceeds": "the claim does not hold" if bounded else "the claim understates it",
        "falls short": "the claim does not hold" if bounded else "the claim overstates it",
        "undecided": f"{spread} on both sides of what counts as the same figure",
    }[found]
