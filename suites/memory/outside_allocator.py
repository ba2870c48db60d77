"""Device memory of a rank that torch's allocator does not hold, and whether a rank fits its device."""

from __future__ import annotations

from collections.abc import Iterator

from harness.instruments.memory.caching_allocator import DeviceFullError, replay
from harness.records import Note, Origin, Reading
from suites.memory.subject import Subject
from suites.training.dry_run.dry_run import DryRun
from suites.training.layouts.room import CUDA_CONTEXT_B, NCCL_OF_MORE_B, NCCL_OF_TWO_B
from suites.training.step import TrainingStep


def outside_allocator_B(step: TrainingStep) -> dict[str, int]:
    """Return the bytes of one of the step's ranks outside torch's allocator on CUDA, by what takes them.

    Ranks that shard states have one communicator. Ranks with the same shard of copies of the states have
    another, and so have tensor-parallel ones, those of a pipeline, and context-parallel and expert-parallel
    ones where they are not all ranks, and those that shard the same experts.
    """
    outside_B = {"cuda_context": CUDA_CONTEXT_B}
    alone = step.features.sharding in ("context", "expert")  # then these ranks are all ranks
    same_part = step.ranks // (step.tensor_ranks * step.pipeline_ranks)
    sizes = [step.shard_ranks, same_part // step.shard_ranks, step.tensor_ranks, step.pipeline_ranks]
    if not alone:
        sizes += [step.context_ranks, step.expert_ranks]
        if step.expert_ranks > 1:
            of_experts = step.expert_ranks * step.expert_tensor_ranks
            sizes.append(step.ranks // step.pipeline_ranks // of_experts)
    groups = [ranks for ranks in sizes if ranks > 1]
    if groups:
        outside_B["nccl_buffers"] = sum(NCCL_OF_TWO_B if ranks == 2 else NCCL_OF_MORE_B for ranks in groups)
    return outside_B


def room_B(subject: Subject) -> float:
    """Return what torch's allocator can reserve on one device at most; not above 0 where there is no room."""
    return subject.usable_B - sum(outside_allocator_B(subject.step).values())


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
