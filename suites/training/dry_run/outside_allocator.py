"""Device memory of a rank that torch's allocator does not hold, and the room that is left for it."""

from __future__ import annotations

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


def room_B(step: TrainingStep, usable_B: float) -> float:
    """Return what torch's allocator can reserve on a device at most; not above 0 where there is no room.

    `usable_B`: what a process can use of the device.
    """
    return usable_B - sum(outside_allocator_B(step).values())
