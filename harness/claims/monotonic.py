"""A claim that orders variants, with its records -> the step from each variant to the next. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.claims.model import AdjacentRatio, Claim, Interpretation
from harness.claims.paired_ratio import AGAIN, compare
from harness.claims.values import (
    NoValueError,
    RecordsByVariant,
    missing_reason,
    noise_around,
    origin_of,
    usable_of,
)
from harness.records import Record, Status, measurement

BASELINE = "baseline"


class Order(NamedTuple):
    """Variants in the order that a claim gives them."""

    steps: tuple[AdjacentRatio, ...]
    origin: str
    records: Mapping[str, Sequence[Record]]  # of each variant, those that have the metric
    noise: tuple[float, float] | None = None  # of a variant against itself, where the smallest step is in it

    @property
    def least(self) -> AdjacentRatio:
        """Return the smallest step, which decides."""
        return min(self.steps, key=lambda step: step.ratio)


def order_of(interpretation: Interpretation, cells: RecordsByVariant) -> Order:
    """Return the steps between the variants; raises `NoValueError`, which names the variant."""
    order = interpretation.order
    records = {variant: _of_variant(interpretation, variant, cells.get(variant, ())) for variant in order}
    origins = {variant: origin_of(interpretation, records_of) for variant, records_of in records.items()}
    _refuse_unlike("origins", origins)
    _refuse_unlike(
        "units", {variant: _unit(interpretation, records_of[0]) for variant, records_of in records.items()}
    )
    steps = tuple(_step(interpretation, pair, records) for pair in pairwise(order))
    records_of = Order(steps, origins[order[0]], records)
    return records_of._replace(noise=_noise(interpretation, records_of.least, cells))


def increases(claim: Claim, ratio: float) -> bool:
    """Return whether a step of this ratio counts: above 1, and as much as the claim asks for."""
    return ratio > 1 and ratio >= claim.accepted[0]


def order_outcome(claim: Claim, steps: Sequence[AdjacentRatio]) -> str:
    """Return the outcome: holds where every step surely increases, falls short where one surely does not."""
    if failing_steps(claim, steps):
        return "falls short"
    return "undecided" if undecided_steps(claim, steps) else "holds"


def failing_steps(claim: Claim, steps: Sequence[AdjacentRatio]) -> list[AdjacentRatio]:
    """Return the steps that surely do not increase."""
    return [step for step in steps if not increases(claim, step.high)]


def undecided_steps(claim: Claim, steps: Sequence[AdjacentRatio]) -> list[AdjacentRatio]:
    """Return the steps whose ends lie on both sides of an increase."""
    return [step for step in steps if increases(claim, step.high) and not increases(claim, step.low)]


def _of_variant(interpretation: Interpretation, variant: str, records: Sequence[Record]) -> list[Record]:
    """Return the variant's records that have the metric, at least one of them ok; raises `NoValueError`."""
    if not records:
        raise NoValueError(f"no record of {variant} on {interpretation.workload}")
    try:
        usable = usable_of(interpretation._replace(variant=variant), records)
        if not any(record.status == Status.OK for record in usable):
            raise NoValueError(missing_reason(interpretation, usable[0]))
        origin_of(interpretation, usable)
        samples = _samples(interpretation, usable)
        if not samples or not all(math.isfinite(value) and value > 0 for value in samples):
            raise NoValueError(f"not every {interpretation.metric} by {interpretation.method} is above 0")
    except NoValueError as reason:
        raise NoValueError(f"{variant}: {reason}", records[0].cell.id) from None
    return usable


def _samples(interpretation: Interpretation, records: Sequence[Record]) -> list[float]:
    """Return the samples of the records that ended ok, all repeats together."""
    well = (record for record in records if record.status == Status.OK)
    measurements = (measurement(record, interpretation.metric, interpretation.method) for record in well)
    return [value for one in measurements if one is not None for value in one.samples]


def _unit(interpretation: Interpretation, record: Record) -> str:
    measured = measurement(record, interpretation.metric, interpretation.method)
    return measured.unit if measured is not None else ""


def _refuse_unlike(what: str, of_variants: Mapping[str, str]) -> None:
    if len(set(of_variants.values())) > 1:
        each = ", ".join(f"{variant} {value}" for variant, value in of_variants.items())
        raise NoValueError(f"its variants have different {what} ({each})")


def _step(
    interpretation: Interpretation,
    variants: tuple[str, str],
    records: Mapping[str, Sequence[Record]],
) -> AdjacentRatio:
    """Return the step, by pairs where several processes have both variants, else by the ranges of samples."""
    before, after = (records[variant] for variant in variants)
    ratio = compare(after, before, interpretation.metric, interpretation.method, least_processes=2)
    return AdjacentRatio(
        *variants, ratio.value, ratio.low, ratio.high, ratio.basis, ratio.processes, ratio.rounds
    )


def _noise(
    interpretation: Interpretation, least: AdjacentRatio, cells: RecordsByVariant
) -> tuple[float, float] | None:
    """Return the noise band of the first variant, or of the baseline, if the smallest step lies in it."""
    candidates = (interpretation.order[0], BASELINE)
    variant = next((one for one in candidates if one + AGAIN in cells), "")
    if not variant or least.basis != "pairs":
        return None
    return noise_around(interpretation, least.ratio, cells.get(variant, ()), cells[variant + AGAIN])
