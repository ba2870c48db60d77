"""deepspeed's ZeRO, stages 1 to 3, with its optimizer and parameters on the device, the host or a disk.

Without a GPU device and host are both `cpu` to it, and page-locking does nothing. There, what it would lock
becomes a tensor on the host floor, and so do the states that it makes on the host without locking them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.instruments.distributed.deepspeed_init import choose_accelerator, initialize
from harness.instruments.distributed.deepspeed_ops import load
from suites.offload.engines import BETAS, WEIGHT_DECAY, adamw
from suites.offload.subject import DEVICE, DISK, HOST, Plan, Workload
from suites.offload.swap_folder import refuse_full
from suites.training.host_memory import HostMemory as Host
from suites.training.model import Transformer

PLACES = {DEVICE: "none", HOST: "cpu", DISK: "nvme"}
PARAMETER_BUFFERS = 16
"""For parameters on the way from the disk: those of a block gathered together, and of the one ahead."""

STATE_BUFFERS = 4
"""Parameter, gradient and two moments of one group, as deepspeed asks at least."""


class Engine:
    """The model in deepspeed's engine."""

    def __init__(self, model: Transformer, plan: Plan, workload: Workload, host: Host) -> None:
        self.plan, self.host, self._swap = plan, host, None
        if DISK in (plan.optimizer, plan.parameters):
            self._swap = tempfile.TemporaryDirectory(dir=workload.folder or None)
        choose_accelerator()
        sizes = Sizes(model, dist.get_world_size())
        settings = config(plan, workload, sizes, self._swap.name if self._swap else "")
        self._lock_here()
        if plan.optimizer == DEVICE:
            optimizer: Any = adamw(model.parameters(), workload)
        else:
            optimizer = cpu_adam(model, workload)
        self.model: Any = initialize(model, optimizer, settings)
        self.zero: Any = self.model.optimizer
        self.host_private_B = locked_B(self.zero, model)
        if plan.optimizer == HOST:
            self._states_down(optimizer)
        if plan.stage == 3 and plan.optimizer != DEVICE and host.device.type == "cpu":
            self._gradients_up()

    def step(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """See `suites.offload.engines.Engine`."""
        loss: Tensor = self.model(tokens_BT, targets_BT)
        self.model.backward(loss)
        self.model.step()
        if self._swap is not None:
            refuse_full(self._swap.name)
        return loss.detach()

    def close(self) -> None:
        """End the engine; its files go."""
        self.model.destroy()
        if self._swap is not None:
            self._swap.cleanup()

    def files_B(self) -> int:
        """Bytes that its files hold; parameters of which a rank has less than 1 MiB it leaves on the host."""
        if self._swap is None:
            return 0
        return sum(one.stat().st_size for one in Path(self._swap.name).rglob("*") if one.is_file())

    def _lock_here(self) -> None:
        """Have what deepspeed page-locks counted, and put on the host floor where nothing can be locked."""
        from deepspeed.accelerator import get_accelerator

        accelerator, host = get_accelerator(), self.host
        lock = type(accelerator).pin_memory

        def pin_memory(tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
            if host.device.type == "cpu":
                return host.keep(tensor)
            locked: Tensor = lock(accelerator, tensor, *arguments, **named)
            host.note(locked)
            return locked

        accelerator.pin_memory = pin_memory

    def _states_down(self, optimizer: Any) -> None:
        """fp32 parameters and moments, which deepspeed keeps on the host without locking them."""
        if self.plan.stage < 3:
            for flat in self.zero.single_partition_of_fp32_groups:
                optimizer.state[flat] = self._moments(flat)
            return
        groups = self.zero.fp32_partitioned_groups_flat
        for index, flat in enumerate(groups):
            if index >= int((1 - self.plan.ratio) * len(groups)):  # as deepspeed chooses
                flat.data = self._down(flat.data)
                optimizer.state[flat] = self._moments(flat)
            elif self.host.device.type == "cpu":
                flat.grad = torch.zeros_like(flat)  # it was locked, then brought to the device: `cpu`

    def _gradients_up(self) -> None:
        """Stage 3 has each gradient brought up again, to widen it there; `.to` does nothing here."""
        offload = self.zero._offload_grad_partition_at_boundary
        self.zero._offload_grad_partition_at_boundary = lambda parameter, gradient, *rest: offload(
            parameter, gradient.clone(), *rest
        )

    def _moments(self, flat: Tensor) -> dict[str, Any]:
        moments = {name: self._down(torch.zeros_like(flat)) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": 0, **moments}

    def _down(self, tensor: Tensor) -> Tensor:
        if self.host.device.type == "cpu":
            return self.host.keep(tensor)
        tensor = tensor.detach().cpu()
        self.host.note(tensor)
        return tensor


def compile_for(plan: Plan) -> None:
    """Have deepspeed's operators at hand that the plan needs."""
    if plan.optimizer != DEVICE:
        load("cpu_adam")
    if DISK in (plan.optimizer, plan.parameters):
        load("async_io")


class Sizes:
    """Elements of the model: of a `block`, of the `largest` parameter, of all; `ranks` share them."""

    def __init__(self, model: Transformer, ranks: int) -> None:
        counts = [one.numel() for one in model.parameters()]
        self.block = sum(one.numel() for one in model.blocks[0].parameters())
        self.largest, self.all, self.ranks = max(counts), sum(counts), ranks


def cpu_adam(model: Transformer, workload: Workload) -> Any:
    """deepspeed's Adam for the host, as AdamW."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(
        model.parameters(),
        lr=workload.learning_rate,
        betas=BETAS,
        eps=workload.epsilon,
        weight_decay=WEIGHT_DECAY,
        adamw_mode=True,
    )


def config(plan: Plan, workload: Workload, sizes: Sizes, swap: str) -> dict[str, Any]:
    """Its defaults, but for clipping, which nobody else does, and sizes in elements, made for billions."""
    bucket = max(sizes.block, sizes.largest)
    zero: dict[str, Any] = {
        "stage": plan.stage,
        "reduce_bucket_size": bucket + bucket % 2,
        "allgather_bucket_size": bucket + bucket % 2,
    }
    if plan.optimizer != DEVICE:
        zero["offload_optimizer"] = {"device": PLACES[plan.optimizer], "buffer_count": STATE_BUFFERS}
        if plan.ratio != 1.0:
            zero["offload_optimizer"]["ratio"] = plan.ratio
        if plan.optimizer == DISK:
            zero["offload_optimizer"]["nvme_path"] = swap
    if plan.parameters != DEVICE:
        zero["offload_param"] = {"device": PLACES[plan.parameters]}
        if plan.parameters == DISK:
            zero["offload_param"] |= {
                "nvme_path": swap,
                "buffer_count": PARAMETER_BUFFERS,
                "buffer_size": -(-sizes.largest // sizes.ranks),
                "max_in_cpu": 0,
            }
    if plan.stage == 3:
        zero |= {
            "sub_group_size": -(-sizes.block // sizes.ranks),
            "stage3_prefetch_bucket_size": sizes.block,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 2 * sizes.block,
            "stage3_max_reuse_distance": 2 * sizes.block,
        }
    return {
        "train_micro_batch_size_per_gpu": workload.micro_batch_size,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # its default is a norm of 1
        **({"bf16": {"enabled": True}} if workload.precision == "bf16" else {}),
    }


def locked_B(zero: Any, model: Transformer) -> int:
    """Bytes of private memory that deepspeed's disk swappers lock: the host's, not the device's."""
    held = []
    if getattr(zero, "optimizer_swapper", None) is not None:
        held += zero.optimizer_swapper.swap_buffer_manager.all_buffers
    swapper = getattr(next(model.parameters()), "nvme_swapper", None)
    if swapper is not None:
        held += [one for one in (swapper.buffers, swapper.partitioned_swap_buffer) if one is not None]
    return sum(one.nbytes for one in held)
