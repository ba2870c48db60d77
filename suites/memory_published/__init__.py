"""The memory_published suite: does the dry run predict peaks that others measured on GPUs?

Each workload is one published peak with the training step that had it. A subject is the description of that
step, or the reason why it cannot be described here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.instruments.memory.caching_allocator import AllocatorSettings
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.memory_published.command import command_of
from suites.memory_published.subject import Subject, Workload, subject_of
from suites.training import correctness
from suites.training.dry_run import Device, dry_run


def build(workload: Json, seed: int) -> Subject:
    """Return the published step, or why it cannot be described."""
    return subject_of(Workload(**workload), seed)


def check(subject: Subject) -> None:
    """Compare the step's losses with plain PyTorch's; raises `WrongResult`."""
    if subject.step is not None:
        correctness.check_as_traced(subject.step)


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return who published the peak, of what, on which GPU, and the command that asks for it."""
    workload, step = subject.workload, subject.step
    return {
        "published_by": workload.published_by,
        "kind": workload.kind,
        "gpu": workload.gpu,
        "source": workload.source,
        "command": command_of(workload),
        "model_code": "" if step is None else step.features.model_code,
    }


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Return the published peak, the dry run's, and the relative error.

    Active bytes are compared with allocated ones; they also count freed blocks that another stream uses.
    Raises `Unavailable` where the step cannot be simulated.
    """
    workload, published_B = subject.workload, subject.workload.published_B
    yield Reading("peak_memory", "B", published_B, Origin.PUBLISHED, "published")
    if subject.step is None:
        raise Unavailable(subject.missing)
    allocator = AllocatorSettings(expandable_segments=workload.expandable_segments)
    device = Device("cuda", architecture=workload.architecture, allocator=allocator)
    run = dry_run(subject.step, device)
    yield Note(f"fake_step: the peak is in {run.place.phase!r}, at {run.place.operation or 'its start'}")
    peak_B = run.reserved_B if workload.kind == "reserved" else run.peak_B
    assert peak_B is not None  # on CUDA
    yield Reading("peak_memory", "B", peak_B, Origin.SIMULATED, "fake_step")
    yield Reading("relative_error", "1", peak_B / published_B - 1, Origin.CALCULATED, "fake_step")


def close(subject: Subject) -> None:
    """Do nothing: a description allocates nothing."""
