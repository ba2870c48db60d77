"""Find the tokens/s per device of any suite's records: as recorded, or tokens over time. Pure.

A record has a throughput by its metrics: `tokens_per_s_per_device`; `tokens_per_step` of all devices or
`tokens_per_gpu` of one, with `time`; or `throughput` of all devices, with the time of a training step. A
`throughput` without one is that of loading data alone, and is no cost of training.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from harness.records import Measurement, Origin, Record, Status, measurement, without_wrong
from harness.report.data.training_metrics import TOKENS, devices

BAND = "band"
"""Method whose samples are the ends of a range, not repeats."""

STEP_TIMES = ("time", "step_time")
"""Metrics of the seconds of a training step: those of a suite that trains."""


class Throughput(NamedTuple):
    """Tokens/s of one device, by one method, over all repeats of a variant on a workload."""

    workload: str
    variant: str
    method: str
    tokens_per_s: float
    origin: str
    device: str  # cpu | cuda | simulated, "" where it is not stated
    device_name: str

    @property
    def is_of_a_gpu(self) -> bool:
        """Return whether it was obtained on a GPU or for one, and not on a CPU or in an emulation."""
        return self.device == "cuda" and self.origin != Origin.EMULATED


def throughputs(records: Iterable[Record]) -> list[Throughput]:
    """Return the throughput of each variant on each workload by each method, workloads in their order."""
    cells: dict[tuple[str, str], list[Record]] = {}
    for record in without_wrong(records):
        if record.status == Status.OK:
            cells.setdefault((record.cell.workload, record.cell.optimization), []).append(record)
    found = [one for repeats in cells.values() for one in _of_cell(repeats)]
    first = list(dict.fromkeys(one.workload for one in found))
    return sorted(found, key=lambda one: first.index(one.workload))


def of_loading_alone(records: Iterable[Record]) -> int:
    """Return how many variants on a workload have a throughput and no time of a training step."""
    return len(
        {
            (record.cell.workload, record.cell.optimization)
            for record in without_wrong(records)
            if record.status == Status.OK and measurement(record, "throughput") and not _trains(record)
        }
    )


def _trains(record: Record) -> bool:
    return any(measurement(record, metric) for metric in STEP_TIMES)


def _of_cell(repeats: Sequence[Record]) -> Iterator[Throughput]:
    first = repeats[0]
    count = devices(first.conditions)
    if per_device := _by_method(repeats, TOKENS):
        yield from (_throughput(first, one, one.value) for one in per_device)
        return
    of_all, of_one = (measurement(first, metric) for metric in ("tokens_per_step", "tokens_per_gpu"))
    times = _by_method(repeats, "time")
    if times and (of_all or of_one):
        tokens = of_one.samples[0] if of_one else of_all.samples[0] / count if of_all else 0.0
        yield from (_throughput(first, one, tokens / one.value) for one in times)
        return
    if _trains(first):
        yield from (_throughput(first, one, one.value / count) for one in _by_method(repeats, "throughput"))


class MedianOfMethod(NamedTuple):
    """The median of all samples of one metric by one method."""

    method: str
    origin: str
    value: float


def _by_method(repeats: Sequence[Record], metric: str) -> list[MedianOfMethod]:
    """Return the medians of a metric by method; values that are not above 0 have no throughput."""
    found: dict[str, list[Measurement]] = {}
    for record in repeats:
        for one in record.measurements:
            if one.metric == metric and one.method != BAND and one.samples:
                found.setdefault(one.method, []).append(one)
    medians = [
        MedianOfMethod(method, ones[0].origin, statistics.median(s for one in ones for s in one.samples))
        for method, ones in found.items()
    ]
    return [one for one in medians if one.value > 0]


def _throughput(record: Record, of: MedianOfMethod, tokens_per_s: float) -> Throughput:
    return Throughput(
        record.cell.workload,
        record.cell.optimization,
        of.method,
        tokens_per_s,
        of.origin,
        record.conditions.get("device", ""),
        record.conditions.get("device_name", ""),
    )
