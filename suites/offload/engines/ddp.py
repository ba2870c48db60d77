"""torch's DistributedDataParallel with AdamW: each rank has all of everything; the baseline.

Gradients are views into DDP's buckets, or there would be two of each.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from suites.offload.engines import adamw, autocast
from suites.offload.subject import Plan, Workload
from suites.training.host_memory import HostMemory as Host
from suites.training.model import Transformer


class Engine:
    """fp32 parameters and states; products in bf16 by autocast."""

    host_private_B = 0

    def __init__(self, model: Transformer, plan: Plan, workload: Workload, host: Host) -> None:
        self.workload, self.device = workload, host.device
        self.optimizer = adamw(model.parameters(), workload)
        self.model: Any = DistributedDataParallel(
            model, gradient_as_bucket_view=True, broadcast_buffers=False
        )

    def step(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """See `suites.offload.engines.Engine`."""
        with autocast(self.device, self.workload.precision):
            loss: Tensor = self.model(tokens_BT, targets_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # the buckets stay
        return loss.detach()

    def close(self) -> None:
        """Nothing stays."""
