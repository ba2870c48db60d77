"""Fully sharded data parallelism, torch's FSDP2: each rank keeps a share of parameters, gradients, states.

Each block is gathered before it is used and let go after it, then the rest of the model around them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from harness.instruments.distributed.fake_process_group import rank_mesh
from harness.records import HostInfo, Unavailable
from suites.memory.step import TrainingStep, Workload, no_context
from suites.memory.training import blocks_of

FP32 = MixedPrecisionPolicy()
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
"""Gathered parameters and the gradients computed from them in bf16; shards, reductions and states in fp32."""


HELD = "FSDP2, rank 0: shards of parameters, gradients and states, and gathered blocks, in the type as built"
BF16_HELD = (
    "FSDP2, rank 0: shards of parameters, gradients and states in fp32; gathered blocks and their "
    "gradients in bf16, reduced in fp32"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """`ranks`: over how many ranks, None: as the workload says."""

    ranks: int | None = None


def unavailable(host: HostInfo) -> str | None:
    """Why it cannot run here; None where it can."""
    if not torch.distributed.is_available():
        return "this build of torch has no torch.distributed"
    return None


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """The step as one of the ranks takes it; autocast gives way to FSDP2's own mixed precision.

    Raises `Unavailable` for an optimizer that torch does not have for shards.
    """
    require_optimizer(subject.workload)
    ranks = subject.workload.ranks if settings.ranks is None else settings.ranks
    autocast = subject.features.precision == "autocast"
    return replace(
        subject,
        ranks=ranks,
        features=replace(subject.features, sharding="zero3"),
        around=no_context if autocast else subject.around,
        wrap=(*subject.wrap, sharding(BF16 if autocast else FP32)),
        notes=(BF16_HELD,) if autocast else (*subject.notes, HELD),
    )


def require_optimizer(workload: Workload) -> None:
    """Raises `Unavailable` where torch has no such optimizer for distributed tensors."""
    if workload.optimizer == "sgd_momentum" and workload.optimizer_impl == "fused":
        raise Unavailable("torch has no fused SGD for distributed tensors; set optimizer_impl=foreach")


def sharding(policy: MixedPrecisionPolicy) -> Callable[[nn.Module], nn.Module]:
    """Shards each block over all ranks, then what is left of the model."""

    def shard(model: nn.Module) -> nn.Module:
        mesh = rank_mesh(next(model.parameters()).device.type)
        for block in blocks_of(model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model

    return shard
