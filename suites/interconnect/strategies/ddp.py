"""torch's DistributedDataParallel: each rank has all parameters; gradients are averaged in buckets.

A bucket is as large as a block, unless the plan says otherwise: torch's 25 MiB are a part of one of many
billions of parameters, and all of a model that two cores train. The only buffers are constants, which need no
broadcast.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from suites.interconnect.strategies import local
from suites.interconnect.subject import Plan


class Wrapped(local.Wrapped):
    """The model in DDP, AdamW over its parameters."""

    def __init__(self, model: nn.Module, plan: Plan, learning_rate: float) -> None:
        super().__init__(model, plan, learning_rate)
        size_B = sum(one.nbytes for one in model.parameters())
        blocks: Any = model.blocks
        bucket_MiB = size_B / (plan.buckets or len(blocks)) / 2**20
        self.model = DistributedDataParallel(model, bucket_cap_mb=bucket_MiB, broadcast_buffers=False)
        if plan.reduce_dtype == "bf16":
            # By its own name DDP takes this hook with NCCL alone, though gloo sums bf16 too.
            self.model.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))

    def reducing(self, last: bool) -> AbstractContextManager[None]:
        """Gradients are reduced as they come, unless told not to."""
        return nullcontext() if last else self.model.no_sync()
