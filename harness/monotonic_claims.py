"""A reading that orders variants, records -> the step from each variant to the next. Beneath the judge;
pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.claim_values import (
    Cells,
    NoFigureError,
    missing_reason,
    origin_of,
    sample_summary,
    usable_of,
    within_noise,
)
from harness.paired_ratio import AGAIN, compare
from harness.records import Claim, Interpretation, Record, Status, measurement
from harness.units import human

BASELINE = "baseline"
RANGES = "ranges of all samples"


class Step(NamedTuple):
    """The later variant's figure over the earlier one's, dimensionless, and the ends between which it
    lies."""

    before: str
    after: str
    ratio: float
    low: float
    high: float
    told: str = ""  # what it rests on
    paired: bool = False  # the ends are those of an interval over processes, not of the samples' ranges


class Order(NamedTuple):
    """Variants in the order that a claim gives them."""

    steps: tuple[Step, ...]
    origin: str
    records: Mapping[str, Sequence[Record]]  # of each variant, those that have the metric
    warning: str = ""  # what keeps the smallest step from being taken at its face

    @property
    def least(self) -> Step:
        """The smallest step, by which the order stands or falls."""
        return min(self.steps, key=lambda step: step.ratio)


def order_of(reading: Interpretation, cells: Cells) -> Order:
    """What the records say of the reading's variants; raises `NoFigureError`, which names the variant."""
    records = {variant: _of_arm(reading, variant, cells.get(variant, ())) for variant in reading.order}
    origins = {variant: origin_of(reading, found) for variant, found in records.items()}
    _refuse_unlike("origins", origins)
    _refuse_unlike("units", {variant: _unit(reading, found[0]) for variant, found in records.items()})
    steps = tuple(_step(reading, pair, records) for pair in pairwise(reading.order))
    order = Order(steps, origins[reading.order[0]], records)
    return order._replace(warning=_noise(reading, order.least, cells))


def rises(claim: Claim, ratio: float) -> bool:
    """Whether a step of this ratio counts as a rise: more than 1, and as much as the claim asks for."""
    return ratio > 1 and ratio >= claim.value * (1 - claim.tolerance)


def order_outcome(claim: Claim, steps: Sequence[Step]) -> str:
    """Holds where every step surely rises, falls short where one surely does not; else undecided."""
    if _failing(claim, steps):
        return "falls short"
    return "undecided" if _open(claim, steps) else "holds"


def order_sentence(claim: Claim, reading: Interpretation, order: Order, found: str) -> str:
    """What an engineer reads: every step in order, their origin, and which of them decides."""
    verb = "rises" if found == "holds" else "goes"
    steps = ", ".join(f"{_shown(step)} to {step.after}" for step in order.steps)
    rests_on = dict.fromkeys(step.told for step in order.steps if step.told)
    origin = f"{order.origin}, {' or '.join(rests_on)}" if rests_on else order.origin
    asked = f", where each step is to be at least {_times(claim.value)}" if claim.value > 1 else ""
    warning = f"; {order.warning}" if order.warning else ""
    end = _end(claim, order.steps, found)
    return f"{reading.text} {verb} from {reading.order[0]} by {steps} ({origin}){asked}: {end}{warning}."


def _end(claim: Claim, steps: Sequence[Step], found: str) -> str:
    if found == "holds":
        return "the claim holds"
    if found == "falls short":
        enough = " enough" if claim.value > 1 else ""
        return f"it does not rise{enough} {_named(_failing(claim, steps))}, so the claim does not hold"
    undecided = _open(claim, steps)
    spread = "the interval lies" if all(step.paired for step in undecided) else "the samples lie"
    return f"{_named(undecided)} {spread} on both sides of what counts as a rise"


def _failing(claim: Claim, steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if not rises(claim, step.high)]


def _open(claim: Claim, steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if rises(claim, step.high) and not rises(claim, step.low)]


def _named(steps: Sequence[Step]) -> str:
    return " and ".join(f"from {step.before} to {step.after}" for step in steps)


def _shown(step: Step) -> str:
    low, high = _times(step.low), _times(step.high)
    return _times(step.ratio) + (f" ({low} to {high})" if low != high else "")


def _times(ratio: float) -> str:
    return human(ratio, "1", "x")


def _of_arm(reading: Interpretation, variant: str, records: Sequence[Record]) -> list[Record]:
    """The variant's records that have the metric, one of them ended well; raises `NoFigureError`."""
    if not records:
        raise NoFigureError(f"no record of {variant} on {reading.workload}")
    try:
        found = usable_of(reading._replace(optimization=variant), records)
        if not any(record.status == Status.OK for record in found):
            raise NoFigureError(missing_reason(reading, found[0]))
        origin_of(reading, found)
        samples = _samples(reading, found)
        if not samples or not all(math.isfinite(value) and value > 0 for value in samples):
            raise NoFigureError(f"{reading.metric} by {reading.method} is not all numbers above 0")
    except NoFigureError as reason:
        raise NoFigureError(f"{variant}: {reason}", records[0].cell.id) from None
    return found


def _samples(reading: Interpretation, records: Sequence[Record]) -> list[float]:
    """Those of the records that ended well, all repeats together."""
    well = (record for record in records if record.status == Status.OK)
    found = (measurement(record, reading.metric, reading.method) for record in well)
    return [value for one in found if one is not None for value in one.samples]


def _unit(reading: Interpretation, record: Record) -> str:
    found = measurement(record, reading.metric, reading.method)
    return found.unit if found is not None else ""


def _refuse_unlike(what: str, of_arms: Mapping[str, str]) -> None:
    if len(set(of_arms.values())) > 1:
        told = ", ".join(f"{variant} {value}" for variant, value in of_arms.items())
        raise NoFigureError(f"its variants have different {what} ({told})")


def _step(
    reading: Interpretation,
    variants: tuple[str, str],
    records: Mapping[str, Sequence[Record]],
) -> Step:
    """By pairs where several processes have both variants, else by the ranges of all samples."""
    before, after = variants
    ratio = compare(records[after], records[before], reading.metric, reading.method, least_processes=2)
    told = {"pairs": sample_summary(ratio), "ranges": RANGES}.get(ratio.basis, "")
    return Step(*variants, ratio.value, ratio.low, ratio.high, told, ratio.basis == "pairs")


def _noise(reading: Interpretation, least: Step, cells: Cells) -> str:
    """What is to be said where the first variant, or the baseline, differs as much from itself; else ""."""
    variant = next((one for one in (reading.order[0], BASELINE) if one + AGAIN in cells), "")
    if not variant or not least.paired:
        return ""
    words = within_noise(reading, least.ratio, cells.get(variant, ()), cells[variant + AGAIN])
    return f"the step from {least.before} to {least.after} lies {words}" if words else ""
