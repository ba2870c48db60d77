"""Readings of whether a step fits its device, the largest micro-batch that does, and what is alive then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from harness.records import Note, Origin, Reading
from suites.memory.subject import Subject, room_B
from suites.training.dry_run.dry_run import DryRun
from suites.training.dry_run.largest_batch import (
    MOST_SEQUENCES,
    fit_of,
    predicted_largest,
    refined_prediction,
    search,
    with_micro_batch,
)
from suites.training.dry_run.live_tensors import live_tensors


def readings(
    subject: Subject,
    run_of: Callable[[Subject], DryRun],
    assumed: Callable[[int], Iterator[Reading]] = lambda largest: iter(()),
) -> Iterator[Reading | Note]:
    """Return whether the subject fits and, where it asks for it, the largest micro-batch that does.

    `assumed`: what could turn the answer, given the largest micro-batch.
    """
    room, step = room_B(subject), subject.step
    requested = step.workload.micro_batch_size
    yield Reading("room_for_allocator", "B", room, Origin.CALCULATED, "fake_step")
    yield Reading("usable_memory", "B", subject.usable_B, Origin.CALCULATED, "fake_step")

    @cache
    def run_at(count: int) -> DryRun:
        changed = with_micro_batch(step, count)
        return run_of(subject if changed is step else replace(subject, step=changed))

    if subject.search == "fits":
        predicted = refined_prediction(step, subject.target, run_at)
    else:
        predicted = predicted_largest(step, subject.target, run_at(requested), requested)
    yield Reading("largest_micro_batch_predicted", "1", predicted, Origin.SIMULATED, "fake_step")
    tried = [requested]
    if subject.search == "largest_micro_batch":
        largest, tried = search(step, subject.target, run_at)
        yield Reading("largest_micro_batch", "1", largest, Origin.SIMULATED, "fake_step")
        yield from assumed(largest)
        if largest == MOST_SEQUENCES:
            yield Note(f"largest_micro_batch: {MOST_SEQUENCES} sequences still fit; no more were tried")
    for count in sorted({requested, *tried}):
        yield from at_micro_batch(subject, count, run_at(count))


def at_micro_batch(subject: Subject, count: int, run: DryRun) -> Iterator[Reading | Note]:
    """Return what one dry run shows: whether it fits, its peak, and what is alive then."""
    target = subject.target
    fit = fit_of(subject.step, run, target)
    expandable = replace(target.allocator, expandable_segments=True)
    better = fit_of(subject.step, run, target._replace(allocator=expandable))

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
