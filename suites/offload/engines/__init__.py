"""Who trains: plain PyTorch with DDP, torch's FSDP2, deepspeed's ZeRO, or an update on the host written out.

Each module has an `Engine`, made of a model, a plan, a workload and the host floor.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from suites.offload.subject import Workload
from suites.training.host_memory import HostMemory as Host

WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.999)
"""The same for every variant; libraries differ in what they take by themselves."""


class Engine(Protocol):
    """A model wrapped for its ranks, with its optimizer.

    `host_private_B`: private memory that an engine takes for the host's part, which no limit on the device
    may count. `files_B()`, of an engine that has files of its own: bytes that they hold.
    """

    host_private_B: int

    def step(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """One training step, update and all; this rank's loss."""

    def close(self) -> None:
        """Give back what goes not by itself."""


def adamw(parameters: Iterable[nn.Parameter], workload: Workload) -> torch.optim.AdamW:
    """torch's AdamW, fused: without temporaries, on every device."""
    return torch.optim.AdamW(
        parameters,
        lr=workload.learning_rate,
        betas=BETAS,
        eps=workload.epsilon,
        weight_decay=WEIGHT_DECAY,
        fused=True,
    )


def states_on_host(optimizer: torch.optim.AdamW, host: Host) -> None:
    """Make the optimizer's two moments on the host, before it makes them where the parameters are."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": on_host(torch.zeros_like(parameter), host),
                "exp_avg_sq": on_host(torch.zeros_like(parameter), host),
            }


def on_host(tensor: Tensor, host: Host) -> Tensor:
    """The tensor, or this rank's part of it, on the host."""
    if not isinstance(tensor, DTensor):
        return host.keep(tensor)
    return DTensor.from_local(
        host.keep(tensor.to_local()),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Matrix products in bf16, where the workload is of mixed precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
