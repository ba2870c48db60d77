"""The memory_published suite: does the dry run predict peaks that others measured on GPUs?

Each workload is one published peak with the training step that had it. A subject is the description of that
step, or the reason why it cannot be described here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from harness.instruments.memory.caching_allocator import AllocatorSettings
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.memory_published import megatron
from suites.memory_published import subject as host
from suites.memory_published.command import command_of
from suites.memory_published.subject import Subject, subject_of
from suites.memory_published.workload import Workload
from suites.training import correctness
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.dry_run.estimates import count
from suites.training.step import TrainingStep
from suites.training.trainer import build_model


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
    """Return the published peak, the predicted one, and the relative error.

    Active bytes are compared with allocated ones; they also count freed blocks that another stream uses.
    Raises `Unavailable` where the step cannot be simulated.
    """
    if subject.workload.program == "deepspeed":
        yield from host.readings(subject.workload)
        return
    published_B = subject.workload.published_B
    if published_B is not None:
        yield Reading("peak_memory", "B", published_B, Origin.PUBLISHED, "published")
        if subject.step is not None:
            yield from of_all_ranks(subject.step, published_B)
    if subject.missing:
        raise Unavailable(subject.missing)
    for reading in by_formula(subject) if subject.step is None else simulated(subject, subject.step):
        yield reading
        if isinstance(reading, Reading) and reading.metric == "peak_memory" and published_B is not None:
            error = reading.value / published_B - 1
            yield Reading("relative_error", "1", error, Origin.CALCULATED, reading.method)


def of_all_ranks(step: TrainingStep, published_B: float) -> Iterator[Reading]:
    """Return the published peak of one rank times the ranks, in total and per parameter of the model."""
    with torch.device("meta"):
        parameters = count(build_model(step), step.workload).parameters
    total_B = published_B * step.ranks
    yield Reading("parameters", "1", parameters, Origin.CALCULATED)
    yield Reading("peak_memory/all_ranks", "B", total_B, Origin.PUBLISHED, "published")
    yield Reading("bytes_per_parameter", "B", total_B / parameters, Origin.PUBLISHED, "published")


def simulated(subject: Subject, step: TrainingStep) -> Iterator[Reading | Note]:
    """Return the peak of the step's dry run, of the kind that was published."""
    workload = subject.workload
    allocator = AllocatorSettings(expandable_segments=workload.expandable_segments)
    device = Device(
        "cuda",
        architecture=workload.architecture,
        allocator=allocator,
        fsdp2_copies_on_own_stream=workload.fsdp2_copies_on_own_stream,
    )
    run = dry_run(step, device)
    yield Note(f"fake_step: the peak is in {run.place.phase!r}, at {run.place.operation or 'its start'}")
    peak_B = run.reserved_B if workload.kind == "reserved" else run.allocated_B
    assert peak_B is not None  # on CUDA
    yield Reading("peak_memory", "B", peak_B, Origin.SIMULATED, "fake_step")


def by_formula(subject: Subject) -> Iterator[Reading | Note]:
    """Return the peak of Megatron-LM by the tensors that it keeps, in total and by part."""
    peak = megatron.published_peak(subject.workload)
    yield Note(f"megatron: of a rank of stage {peak.stage + 1} of {subject.workload.pp_size}")
    yield Reading("peak_memory", "B", peak.total_B, Origin.CALCULATED, "megatron")
    for part in ("states", "activations", "logits", "communication", "workspaces"):
        yield Reading(f"peak_memory/{part}", "B", getattr(peak, part), Origin.CALCULATED, "megatron")


def close(subject: Subject) -> None:
    """Do nothing: a description allocates nothing."""
