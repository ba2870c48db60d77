"""Records of `harness.fit` to the values of its answer; `harness.commands.fit.lines` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from harness.records import Record, measurement

if TYPE_CHECKING:
    from harness.commands.fit.question import Question

AT = "at_micro_batch"
"""Metrics of one dry run are `at_micro_batch/<sequences>/<metric>`."""

OUTSIDE = {"cuda_context": "CUDA context", "nccl_buffers": "NCCL buffers"}


class DryRunValues(NamedTuple):
    """What one dry run found at a micro-batch."""

    micro_batch_size: int
    fits: bool
    fits_expandable: bool
    retries: int
    peak_B: float
    reserved_B: float
    by_kind_B: Mapping[str, float]
    live_B: Mapping[str, float]  # by what it is of, largest first


ASSUMPTION = "assumption"
"""Metrics under another choice than the assumed one are `assumption/<choice>/<metric>`."""


class AssumptionResult(NamedTuple):
    """The answer under another choice than the assumed one."""

    choice: str
    fits: bool
    largest: int


def value(record: Record, metric: str) -> float | None:
    """Return the last sample of a metric; None where there is none."""
    found = measurement(record, metric)
    return found.samples[-1] if found is not None and found.samples else None


def dry_runs(record: Record) -> list[DryRunValues]:
    """Return the dry runs of a record, by micro-batch."""
    by_size: dict[int, dict[str, float]] = {}
    for one in record.measurements:
        if one.metric.startswith(f"{AT}/"):
            _, size, metric = one.metric.split("/", 2)
            by_size.setdefault(int(size), {})[metric] = one.samples[-1]
    return [_values(size, values) for size, values in sorted(by_size.items())]


def _values(size: int, values: Mapping[str, float]) -> DryRunValues:
    def below(prefix: str) -> dict[str, float]:
        return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}

    return DryRunValues(
        size,
        bool(values["fits"]),
        bool(values["fits_with_expandable_segments"]),
        int(values["allocator_retries"]),
        values["peak_memory"],
        values.get("reserved_memory", values["peak_memory"]),
        below("peak_memory/"),
        below("live_at_peak/"),
    )


def GB(size_B: float) -> str:
    """Return bytes in GB without the unit."""
    return f"{size_B / 1e9:.1f}"


class Answer:
    """What the record of the recipe says."""

    def __init__(self, record: Record, question: Question, left_out: str = "") -> None:
        """`left_out`: why the default recipe is without flash attention."""
        self.record, self.question, self.left_out = record, question, left_out
        self.runs = {one.micro_batch_size: one for one in dry_runs(record)}
        self.asked = int(record.cell.config["workload"]["micro_batch_size"])
        self.largest = int(value(record, "largest_micro_batch") or 0)
        self.fits = self.runs[self.asked].fits
        self.usable_B = value(record, "usable_memory") or 0.0
        self.room_B = value(record, "room_for_allocator") or 0.0
        above = [size for size, run in self.runs.items() if not run.fits and size >= self.asked]
        self.first_that_does_not_fit = min(above, default=self.largest)
        """The asked micro-batch where it does not fit; else the one after the largest that does."""

    @property
    def assumptions(self) -> list[AssumptionResult]:
        """Return what the recipe leaves open, with the answer under the other choice."""
        found: dict[str, dict[str, int]] = {}
        for one in self.record.measurements:
            if one.metric.startswith(f"{ASSUMPTION}/"):
                _, name, metric = one.metric.split("/", 2)
                found.setdefault(name, {})[metric] = int(one.samples[-1])
        return [
            AssumptionResult(name, bool(values["fits"]), values.get("largest_micro_batch", 0))
            for name, values in found.items()
        ]

    @property
    def outside(self) -> str:
        """Return what lies outside of torch's allocator, in words."""
        found = {name: value(self.record, f"outside_allocator/{name}") for name in OUTSIDE}
        return " and ".join(f"{GB(size_B)} GB of {OUTSIDE[name]}" for name, size_B in found.items() if size_B)


class WhatIfResult(NamedTuple):
    """A change of the recipe with its record, or the reason why it was not tried."""

    title: str
    reason: str
    record: Record | None
