"""Whether a step fits its device, the largest micro-batch that does, and what is alive at the peak.

A step fits where a replay of its dry run's allocations finds room for each of them on the device. Torch's
allocator rounds, caches and splits blocks, so that it needs more than the live bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import prod
from typing import NamedTuple

from harness.instruments.memory.caching_allocator import AllocatorSettings, DeviceFullError, replay
from harness.instruments.memory.memory_timeline import MemoryEvent, Timeline
from harness.records import Note, Origin, Reading
from suites.memory.live_tensors import live_tensors
from suites.memory.outside_allocator import room_B
from suites.memory.subject import Subject
from suites.training.dry_run.dry_run import DryRun
from suites.training.workload import Workload

MOST_SEQUENCES = 65_536
"""The largest micro-batch that is searched."""

PATIENCE = 6
"""Dry runs after which the bracket is halved in place of trusting predictions."""

RunOf = Callable[[int], DryRun]
"""Micro-batch to its dry run."""


class Fit(NamedTuple):
    """Whether a step fits: `retries` is how often the allocator frees its cache for that, in two steps."""

    fits: bool
    retries: int


def readings(
    subject: Subject,
    run_of: Callable[[Subject], DryRun],
    assumed: Callable[[int], Iterator[Reading]] = lambda largest: iter(()),
) -> Iterator[Reading | Note]:
    """Return whether the subject fits and, where it asks for it, the largest micro-batch that does.

    `assumed`: what could turn the answer, given the largest micro-batch.
    """
    room = room_B(subject)
    asked = subject.step.workload.micro_batch_size
    yield Reading("room_for_allocator", "B", room, Origin.CALCULATED, "fake_step")
    yield Reading("usable_memory", "B", subject.usable_B, Origin.CALCULATED, "fake_step")

    @cache
    def run_at(count: int) -> DryRun:
        return run_of(with_micro_batch(subject, count))

    predicted = predicted_largest(subject, run_at(asked), asked, 0, MOST_SEQUENCES + 1)
    if subject.search == "fits" and predicted not in (0, asked):
        predicted = predicted_largest(subject, run_at(predicted), predicted, 0, MOST_SEQUENCES + 1)
    yield Reading("largest_micro_batch_predicted", "1", predicted, Origin.SIMULATED, "fake_step")
    tried = [asked]
    if subject.search == "largest_micro_batch":
        largest, tried = search(subject, run_at)
        yield Reading("largest_micro_batch", "1", largest, Origin.SIMULATED, "fake_step")
        yield from assumed(largest)
        if largest == MOST_SEQUENCES:
            yield Note(f"largest_micro_batch: {MOST_SEQUENCES} sequences still fit; no more were tried")
    for count in sorted({asked, *tried}):
        yield from at_micro_batch(subject, count, run_at(count))


def with_micro_batch(subject: Subject, count: int) -> Subject:
    """Return the subject with `count` sequences in a micro-batch."""
    if count == subject.step.workload.micro_batch_size:
        return subject
    workload = replace(subject.step.workload, micro_batch_size=count)
    return replace(subject, step=replace(subject.step, workload=workload))


def at_micro_batch(subject: Subject, count: int, run: DryRun) -> Iterator[Reading | Note]:
    """Return what one dry run shows: whether it fits, its peak, and what is alive then."""
    fit = fit_of(subject, run)
    better = fit_of(subject, run, replace(subject.allocator, expandable_segments=True))

    def reading(metric: str, unit: str, value: float) -> Reading:
        return Reading(f"at_micro_batch/{count}/{metric}", unit, value, Origin.SIMULATED, "fake_step")

    yield reading("fits", "1", int(fit.fits))
    yield reading("fits_with_expandable_segments", "1", int(better.fits))
    yield reading("allocator_retries", "1", fit.retries)
    yield reading("peak_memory", "B", run.peak_B)
    if run.reserved_B is not None:
        yield reading("reserved_memory", "B", run.reserved_B)
    for kind, size_B in run.by_kind_B.items():
        yield reading(f"peak_memory/{kind}", "B", size_B)
    if run.timeline is not None:
        workload = subject.step.workload
        for label, size_B in live_tensors(run.timeline, workload.vocab_size, workload.seq_len).items():
            yield reading(f"live_at_peak/{label}", "B", size_B)


def fit_of(subject: Subject, run: DryRun, settings: AllocatorSettings | None = None) -> Fit:
    """Return whether the run's allocations find room on the subject's device, by default as it is set up."""
    if run.timeline is None or run.reserved_B is None:
        return Fit(run.peak_B <= room_B(subject), 0)
    return _replayed(run.timeline.events, settings or subject.allocator, room_B(subject))


def _replayed(events: list[MemoryEvent], settings: AllocatorSettings, capacity_B: float) -> Fit:
    requests = ((one.storage, one.delta_B, one.stream) for one in events)
    try:
        return Fit(True, replay(requests, settings, capacity_B).retries)
    except DeviceFullError:
        return Fit(False, 0)


def search(subject: Subject, run_at: RunOf) -> tuple[int, list[int]]:
    """Return the largest micro-batch that fits, 0 where one sequence does not, and those that were dry-run.

    Both sides of the answer are dry runs. Which to try next is predicted by scaling the last one. Assumes
    that fewer sequences fit where more do.
    """
    low, high = 0, MOST_SEQUENCES + 1
    tried: list[int] = []
    count = subject.step.workload.micro_batch_size
    while high - low > 1:
        run = run_at(count)
        tried.append(count)
        low, high = (count, high) if fit_of(subject, run).fits else (low, count)
        if high - low <= 1:
            break
        if len(tried) < PATIENCE:
            predicted = predicted_largest(subject, run, count, low, high)
        else:
            predicted = 2 * low if high > MOST_SEQUENCES else (low + high) // 2
        count = min(max(predicted, low + 1), high - 1)
    return low, tried


def predicted_largest(subject: Subject, run: DryRun, count: int, low: int, high: int) -> int:
    """Return the largest micro-batch from `low` to below `high` that fits, predicted by scaling a dry run.

    `count`: the micro-batch of the run. Returns `low` where nothing above it fits. More sequences may fit
    again where fewer do not, because the allocator then frees its cache at another moment. So the search
    starts at the largest that fits without that.
    """
    workload = replace(subject.step.workload, micro_batch_size=count)

    @cache
    def fit_at(more: int) -> Fit:
        return predicted_fit(subject, run, workload, more)

    low = largest_that(lambda more: fit_at(more) == Fit(True, 0), low, high)
    return largest_that(lambda more: fit_at(more).fits, low, high)


def largest_that(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number from `low` to below `high` that fits, in steps that double, then halve."""
    width = 1
    while low + width < high and fits(low + width):
        low, width = low + width, 2 * width
    high = min(high, low + width)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def predicted_fit(subject: Subject, run: DryRun, workload: Workload, count: int) -> Fit:
    """Return whether `count` sequences would fit, had each tensor with tokens so many of them."""
    room = room_B(subject)
    if run.timeline is None or run.reserved_B is None:
        return Fit(run.peak_B / workload.micro_batch_size * count <= room, 0)
    return _replayed(scaled(run.timeline, workload, count), subject.allocator, room)


def scaled(timeline: Timeline, workload: Workload, count: int) -> list[MemoryEvent]:
    """Return the events with `count` sequences in place of the workload's: a prediction from shapes."""
    share = count / workload.micro_batch_size
    grows: set[int] = set()
    events = []
    for event in timeline.events:
        if event.delta_B > 0 and _has_tokens(timeline, event, workload):
            grows.add(event.storage)
        by = share if event.storage in grows else 1
        events.append(event._replace(delta_B=round(event.delta_B * by)))
    return events


def _has_tokens(timeline: Timeline, event: MemoryEvent, workload: Workload) -> bool:
    """Return whether a storage grows with the micro-batch, as its first result's shape has it."""
    shape, phase = event.place.shape, event.place.phase
    if timeline.kinds[event.storage] not in ("activations", "temporaries"):
        return False
    if not phase.startswith(("forward", "backward")) or prod(shape) % workload.micro_batch_size:
        return False
    if event.delta_B < workload.micro_batch_size:  # an operation's random state, whose shape is not noted
        return False
    tokens = workload.micro_batch_size * workload.seq_len
    of_tokens = tokens in shape or shape[:1] == (workload.micro_batch_size,)
    return of_tokens or len(shape) != 2 or shape[-1] == workload.vocab_size
