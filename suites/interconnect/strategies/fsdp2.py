"""torch's FSDP2: each rank keeps a share of every parameter; a block is gathered before it is used.

With `shard_within` ranks, parameters are sharded among so many neighbours and copied between those groups,
whose gradients are then averaged (hybrid sharding).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from suites.interconnect.strategies import local
from suites.interconnect.subject import Plan


class Wrapped(local.Wrapped):
    """The model with its blocks and its rest sharded, AdamW over the shards."""

    def __init__(self, model: nn.Module, plan: Plan, learning_rate: float) -> None:
        mesh = mesh_of(plan, next(model.parameters()).device.type)
        dtype = torch.bfloat16 if plan.reduce_dtype == "bf16" else None
        policy = MixedPrecisionPolicy(reduce_dtype=dtype)
        blocks: Any = model.blocks
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        if plan.forward_prefetch:
            forward_prefetch(model)
        super().__init__(model, plan, learning_rate)

    def reducing(self, last: bool) -> AbstractContextManager[None]:
        """Parameters are gathered for every batch, gradients reduced for the last."""
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def parameters(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {name: whole(one) for name, one in super().parameters().items()}

    def gradients(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {name: whole(one) for name, one in super().gradients().items()}


def whole(tensor: Any) -> Tensor:
    """All of a tensor that is sharded over ranks."""
    full: Tensor = tensor.full_tensor()
    return full


def forward_prefetch(model: Any) -> None:
    """Begin to gather a block while the one before computes; on a CPU torch does not by itself."""
    model._set_unshard_async_op(True)
    for block, following in pairwise(model.blocks):
        block.set_modules_to_forward_prefetch([following])


def mesh_of(plan: Plan, device: str) -> DeviceMesh:
    """All ranks in a row, or rows of `shard_within` neighbours."""
    world = dist.get_world_size()
    if plan.shard_within is None:
        return init_device_mesh(device, (world,))
    rows = world // plan.shard_within
    return init_device_mesh(device, (rows, plan.shard_within), mesh_dim_names=("replicate", "shard"))
