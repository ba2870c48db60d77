"""Readings of what torch's allocator reserves on CUDA and of what lies outside of it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.instruments.memory.caching_allocator import DeviceFullError, replay
from harness.records import Note, Origin, Reading
from suites.memory.subject import Subject
from suites.training.dry_run import outside_allocator
from suites.training.dry_run.dry_run import DryRun
from suites.training.dry_run.outside_allocator import outside_allocator_B


def room_B(subject: Subject) -> float:
    """Return what torch's allocator can reserve on one device at most; not above 0 where there is no room."""
    return outside_allocator.room_B(subject.step, subject.usable_B)


def reserved(subject: Subject, run: DryRun) -> Iterator[Reading | Note]:
    """Return what a dry run of CUDA reserves, what lies outside of it, and whether a full device is slow."""
    if run.reserved_B is None:
        return
    yield Reading("reserved_memory", "B", run.reserved_B, Origin.SIMULATED, "fake_step")
    for name, size_B in outside_allocator_B(subject.step).items():
        yield Reading(f"outside_allocator/{name}", "B", size_B, Origin.CALCULATED, "fake_step")
    retries = retries_to_fit(subject, run)
    if retries:
        yield Note(
            f"fake_step: one rank fits, but slowly: the allocator would free cached blocks and retry "
            f"({retries} times in two steps)"
        )


def retries_to_fit(subject: Subject, run: DryRun) -> int | None:
    """Return how often the allocator would free its cached blocks on the subject's device.

    None where the step does not fit, or `run` has no timeline.
    """
    if run.timeline is None:
        return None
    try:
        return replay(run.timeline.requests(), subject.allocator, room_B(subject)).retries
    except DeviceFullError:
        return None
