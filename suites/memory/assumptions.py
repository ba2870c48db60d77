"""Readings of what a step assumes and could turn its answer, and of the bytes on its host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from harness.records import Origin, Reading
from suites.memory.subject import Subject
from suites.training.dry_run.dry_run import DryRun
from suites.training.dry_run.estimates import ModelCounts, host_memory_B
from suites.training.dry_run.largest_batch import under_other_choices


def readings(subject: Subject, largest: int, run_of: Callable[[Subject], DryRun]) -> Iterator[Reading]:
    """Yield, under each other choice, whether the requested micro-batch fits and the largest that does.

    `largest`: that of the subject. `run_of`: dry-runs a subject.
    """
    choices = under_other_choices(
        subject.step, subject.target, largest, lambda step: run_of(replace(subject, step=step))
    )
    for other in choices:
        name = f"assumption/{other.choice}"
        yield Reading(f"{name}/fits", "1", int(other.fits), Origin.SIMULATED, "fake_step")
        if largest:
            most = other.largest_micro_batch
            yield Reading(f"{name}/largest_micro_batch", "1", most, Origin.SIMULATED, "fake_step")


def host_B(subject: Subject, counts: ModelCounts) -> float:
    """Return the bytes that one rank keeps in its host's memory; 0 where it is not known."""
    return host_memory_B(subject.step, counts)
