"""Where deepspeed's engine puts what it offloads: page-locked host memory, its emulation, or files on a disk.

Without a GPU, device and host are both `cpu` to deepspeed, and page-locking does nothing. There, what it
would lock becomes a tensor on the emulated host, and so do the states that it makes on the host without
locking them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.instruments.distributed.deepspeed_engine import load
from harness.records import Unavailable
from suites.training.optimizers.optimizers import LEARNING_RATE
from suites.training.resources import Resources
from suites.training.workload import Workload

PLACES = {"device": "none", "host": "cpu", "disk": "nvme"}
"""Deepspeed's name of each memory tier."""

PARAMETER_BUFFERS = 16
"""Buffers for parameters read from the disk: those of a block gathered together, and of the next one."""

STATE_BUFFERS = 4
"""Least buffers that deepspeed needs: parameter, gradient and two moments of one group."""

ROOM_B = 2**22
"""Free bytes below which a disk counts as full: a block of 1 MiB, which deepspeed writes at once, and what
file systems reserve (ext4 was full with 1.2 MB free)."""


class Offload:
    """What one engine offloads. `locked_B`: private memory of this process that represents the host's."""

    def __init__(
        self, stage: int, optimizer: str, parameters: str, ratio: float, resources: Resources
    ) -> None:
        self.stage, self.optimizer, self.parameters, self.ratio = stage, optimizer, parameters, ratio
        self.host = resources.host
        self.emulated = resources.device.type == "cpu"
        self.locked_B = 0
        self._swap: tempfile.TemporaryDirectory[str] | None = None
        if "disk" in (optimizer, parameters):
            load("async_io")
            self._swap = tempfile.TemporaryDirectory(dir=resources.folder or None)
        if (optimizer, parameters) != ("device", "device"):
            self._count_locked()

    def configure(self, zero: dict[str, Any], largest: int, ranks: int) -> None:
        """Return deepspeed's configuration for it; `largest`: elements of the largest parameter."""
        swap = {"nvme_path": self._swap.name} if self._swap else {}
        if self.optimizer != "device":
            place = {"device": PLACES[self.optimizer], "buffer_count": STATE_BUFFERS}
            ratio = {"ratio": self.ratio} if self.ratio != 1.0 else {}
            zero["offload_optimizer"] = {**place, **ratio, **(swap if self.optimizer == "disk" else {})}
        if self.parameters != "device":
            zero["offload_param"] = {"device": PLACES[self.parameters]}
        if self.parameters == "disk":
            zero["offload_param"] |= {
                **swap,
                "buffer_count": PARAMETER_BUFFERS,
                "buffer_size": -(-largest // ranks),
                "max_in_cpu": 0,
            }

    def take_down(self, zero: Any, optimizer: Any, parameters: list[nn.Parameter]) -> None:
        """Move what the built engine keeps on the host without locking it to the emulated host."""
        if (self.optimizer, self.parameters) == ("device", "device"):
            return
        self.locked_B = swap_buffers_B(zero, parameters)
        if self.optimizer == "host":
            self._states_down(zero, optimizer)
        if self.stage == 3 and self.optimizer != "device" and self.emulated:
            self._gradients_up(zero)

    def refuse_full_disk(self) -> None:
        """Raise `Unavailable` where the disk of the swap files is full.

        deepspeed continues after a failed write, and trains on wrong data.
        """
        if self._swap is None:
            return
        disk = os.statvfs(self._swap.name)
        free_B = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
        if free_B < ROOM_B:
            raise Unavailable(f"the disk of its swap files is full: {free_B} B are left")

    def files_B(self) -> int:
        """Return the bytes of its files; parameters of which a rank has less than 1 MiB stay on the host."""
        if self._swap is None:
            return 0
        return sum(one.stat().st_size for one in Path(self._swap.name).rglob("*") if one.is_file())

    def close(self) -> None:
        """Remove the files."""
        if self._swap is not None:
            self._swap.cleanup()

    def _count_locked(self) -> None:
        """Count what deepspeed page-locks, and without a GPU put it on the emulated host."""
        from deepspeed.accelerator import get_accelerator

        accelerator, host, emulated = get_accelerator(), self.host, self.emulated
        lock = type(accelerator).pin_memory

        def pin_memory(tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
            if emulated:
                return host.keep(tensor)
            locked: Tensor = lock(accelerator, tensor, *arguments, **named)
            host.note(locked)
            return locked

        accelerator.pin_memory = pin_memory

    def _states_down(self, zero: Any, optimizer: Any) -> None:
        """Move fp32 parameters and moments down, which deepspeed keeps on the host without locking them."""
        if self.stage < 3:
            for flat in zero.single_partition_of_fp32_groups:
                optimizer.state[flat] = self._moments(flat)
            return
        groups = zero.fp32_partitioned_groups_flat
        for index, flat in enumerate(groups):
            if index >= int((1 - self.ratio) * len(groups)):  # as deepspeed chooses
                flat.data = self._down(flat.data)
                optimizer.state[flat] = self._moments(flat)
            elif self.emulated:
                flat.grad = torch.zeros_like(flat)  # it was locked, then moved to the device, which is `cpu`

    def _gradients_up(self, zero: Any) -> None:
        """Copy each gradient up again, as stage 3 does to widen it there; `.to` does nothing here."""
        offload = zero._offload_grad_partition_at_boundary
        zero._offload_grad_partition_at_boundary = lambda parameter, gradient, *rest: offload(
            parameter, gradient.clone(), *rest
        )

    def _moments(self, flat: Tensor) -> dict[str, Any]:
        moments = {name: self._down(torch.zeros_like(flat)) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": 0, **moments}

    def _down(self, tensor: Tensor) -> Tensor:
        if self.emulated:
            return self.host.keep(tensor)
        tensor = tensor.detach().cpu()
        self.host.note(tensor)
        return tensor


def cpu_adam(parameters: list[nn.Parameter], workload: Workload) -> Any:
    """Return deepspeed's Adam for the host, as AdamW."""
    load("cpu_adam")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    rate = LEARNING_RATE["adamw"] if workload.learning_rate is None else workload.learning_rate
    return DeepSpeedCPUAdam(
        parameters, lr=rate, eps=workload.adam_epsilon, weight_decay=workload.weight_decay, adamw_mode=True
    )


def swap_buffers_B(zero: Any, parameters: list[nn.Parameter]) -> int:
    """Return the private bytes that deepspeed's disk swappers lock: the host's, not the device's."""
    buffers = []
    if getattr(zero, "optimizer_swapper", None) is not None:
        buffers += zero.optimizer_swapper.swap_buffer_manager.all_buffers
    swapper = getattr(parameters[0], "nvme_swapper", None)
    if swapper is not None:
        buffers += [one for one in (swapper.buffers, swapper.partitioned_swap_buffer) if one is not None]
    return sum(one.nbytes for one in buffers)
