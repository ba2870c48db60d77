"""torch's FSDP2: parameters, gradients and states in shards; with `CPUOffloadPolicy` all of them on the host.

Without a GPU device and host are both `cpu` to it. Then the shards are put on the host from here, and each
gradient as soon as it is reduced, which is when the policy does it. Buffers stay, as with the policy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from harness.instruments.distributed.fake_process_group import rank_mesh
from suites.offload.engines import adamw, on_host, states_on_host
from suites.offload.subject import HOST, Plan, Workload
from suites.training.host_memory import HostMemory as Host
from suites.training.model import Transformer


class Engine:
    """Blocks and the rest sharded over all ranks; products and gathers in bf16 where precision is mixed."""

    host_private_B = 0

    def __init__(self, model: Transformer, plan: Plan, workload: Workload, host: Host) -> None:
        self.host, down = host, plan.parameters == HOST
        self.gradients: dict[nn.Parameter, Any] = {}  # on the emulated host
        real = host.device.type != "cpu"
        offload = CPUOffloadPolicy(pin_memory=real) if down else OffloadPolicy()
        mesh = rank_mesh(host.device.type)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if workload.precision == "bf16" else None)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=offload)
        sharded: Any = fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)
        self.model = sharded
        if down and not real:
            self.model._apply(lambda one: on_host(one, host) if isinstance(one, DTensor) else one)
            for parameter in self.model.parameters():
                parameter.register_post_accumulate_grad_hook(self._gradient_down)
        elif down:
            for parameter in self.model.parameters():
                host.note(parameter.to_local())
        self.optimizer = adamw(self.model.parameters(), workload)
        if down:
            states_on_host(self.optimizer, host)

    def _gradient_down(self, parameter: nn.Parameter) -> None:
        fresh: Any = parameter.grad
        if parameter not in self.gradients:
            self.gradients[parameter] = on_host(fresh, self.host)
        else:
            self.gradients[parameter].to_local().copy_(fresh.to_local())
        parameter.grad = self.gradients[parameter]

    def step(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """See `suites.offload.engines.Engine`."""
        loss: Tensor = self.model(tokens_BT, targets_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def close(self) -> None:
        """Nothing stays."""
