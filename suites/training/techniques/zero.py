"""ZeRO (arXiv 1910.02054) by deepspeed's engine: it shards optimizer states, gradients and parameters.

States and parameters may be on the device, on the host (ZeRO-Offload, arXiv 2101.06840) or on a disk
(ZeRO-Infinity, arXiv 2104.07857). The same engine runs on real tensors and on fake ones, see
`optimizers.PlainNumbers`. deepspeed's mixed precision, with bf16 gradients, takes the place of autocast.

What the engine offloads goes to page-locked host memory, its emulation, or files on a disk. Without a GPU,
device and host are both `cpu` to deepspeed, and page-locking does nothing. There, what it would lock becomes
a tensor on the emulated host, and so do the states that it makes on the host without locking them.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from harness.instruments import torch_internals
from harness.instruments.distributed.deepspeed_engine import choose_accelerator, initialize, load
from harness.question import DEEPSPEED_BUCKET
from harness.records import Unavailable
from suites.training import optimizers
from suites.training.declared import ZeROSettings
from suites.training.host_memory import Resources
from suites.training.models.model import blocks_of
from suites.training.step import TrainingStep, no_context
from suites.training.workload import Workload

PRECISIONS = {"fp32": "fp32", "autocast": "bf16_grads", "bf16_grads": "bf16_grads"}
"""The precision of a step before it, and with it: deepspeed's mixed precision has bf16 gradients."""

NOTE = (
    "deepspeed's ZeRO stage {stage}, rank 0: flat buffers of the shards; buckets of at most {bucket} "
    "elements; all on one stream, so that a GPU can reserve more"
)


def unavailable() -> str | None:
    """Return why deepspeed cannot run here; None where it can."""
    return "deepspeed is not installed" if importlib.util.find_spec("deepspeed") is None else None


def applies_to(workload: Workload, settings: ZeROSettings) -> str | None:
    """Return why deepspeed cannot train so; None where it can."""
    if settings.optimizer != "device" and workload.optimizer != "adamw":
        return f"deepspeed's update on the host supports Adam only, not {workload.optimizer}"
    if workload.optimizer == "muon":
        return "muon needs matrices, and deepspeed's shards are flat"
    return None


def apply(step: TrainingStep, settings: ZeROSettings) -> TrainingStep:
    """Return one of `dp_size` ranks' step; deepspeed's mixed precision takes the place of autocast."""
    if settings.parameters != "device" and settings.stage != 3:
        raise ValueError("zero: parameters can be stored on the host or a disk with stage 3 alone")
    if step.features.precision not in PRECISIONS:
        raise Unavailable(
            "zero has bf16 gradients of its own: it does not combine with mixed_precision: {gradients: fp32}"
        )
    precision = PRECISIONS[step.features.precision]
    reason = None
    if (settings.optimizer, settings.parameters) != ("device", "device"):
        reason = (
            "a dry run counts all memory as the device's, and zero keeps states on the host or a disk here; "
            "fsdp2: {cpu_offload: true} keeps them on the host, too, and can be dry-run"
        )
    largest = max(DEEPSPEED_BUCKET, settings.reduce_bucket or 0)
    features = replace(
        step.features,
        precision=precision,
        sharding=f"zero{settings.stage}",
        optimizer_on=settings.optimizer,
        parameters_on=settings.parameters,
        offload_ratio=settings.ratio,
    )
    return replace(
        step,
        ranks=step.workload.dp_size,
        features=features,
        model_dtype=torch.bfloat16 if precision == "bf16_grads" else step.model_dtype,
        around=no_context,
        wraps=(*step.wraps, EngineModel),
        make_optimizer=partial(start_engine, settings, precision),
        layers_alike=False,  # flat buffers and buckets do not grow layer by layer
        no_dry_run=step.no_dry_run or reason,
        notes=(*step.notes, NOTE.format(stage=settings.stage, bucket=largest)),
    )


class Sizes:
    """Count the model's elements: of a `block`, of the `largest` parameter, of `all`; `ranks` share them."""

    def __init__(self, model: nn.Module) -> None:
        counts = [one.numel() for one in model.parameters()]
        self.block = sum(one.numel() for one in blocks_of(model)[0].parameters())
        self.largest, self.all, self.ranks = max(counts), sum(counts), dist.get_world_size()


def start_engine(
    settings: ZeROSettings, precision: str, model: nn.Module, workload: Workload, resources: Resources
) -> EngineOptimizer:
    """Put the model into deepspeed's engine, which shards it over the present process group."""
    assert isinstance(model, EngineModel)
    if not dist.is_initialized():
        raise RuntimeError("no process group: enter fake_process_group, or start real ranks, before sharding")
    choose_accelerator(resources.device.type)
    parameters = list(model.parameters())
    fake = torch_internals.is_fake(parameters[0])
    offload = Offload(settings, resources)
    sizes = Sizes(model.module)
    if settings.optimizer == "device":
        optimizer = optimizers.make_torch_optimizer(parameters, workload)
    else:
        optimizer = cpu_adam(parameters, workload)
    plain = functional.linear
    try:
        with optimizers.values_not_read(fake):
            arguments = config(settings, precision, workload, sizes)
            offload.configure(arguments["zero_optimization"], sizes.largest, sizes.ranks)
            engine = initialize(Resident(model.module), optimizer, arguments)
        model.enter(engine, fake, functional.linear)  # stage 3 has put one of its own there, for good
    finally:
        functional.linear = plain
    offload.take_down(engine.optimizer, optimizer, list(model.parameters()))
    return EngineOptimizer(engine, optimizer, fake, plain, offload)


def config(settings: ZeROSettings, precision: str, workload: Workload, sizes: Sizes) -> dict[str, Any]:
    """Return deepspeed's defaults, except for clipping, and for sizes that are made for large models.

    Buckets have at most the model's elements, of a small one else 2 GB. One above the default is allocated
    whole (0.19.8, runtime/zero/stage3.py; stage_1_and_2.py, setup_buckets).
    """
    block = max(sizes.block, sizes.largest)
    bucket = min(DEEPSPEED_BUCKET, sizes.all) if settings.buckets == "model" else block
    bucket += bucket % 2  # its engine asks for an even number
    reduced = settings.reduce_bucket or bucket
    if reduced <= DEEPSPEED_BUCKET:
        reduced = min(reduced, bucket)
    reduced += reduced % 2
    zero = {"stage": settings.stage, "reduce_bucket_size": reduced, "allgather_bucket_size": bucket}
    if settings.buckets == "block" and settings.stage == 3:
        zero |= {
            "sub_group_size": -(-sizes.block // sizes.ranks),
            "stage3_prefetch_bucket_size": sizes.block,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 2 * sizes.block,
            "stage3_max_reuse_distance": 2 * sizes.block,
        }
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": workload.micro_batch_size,
        "gradient_clipping": workload.max_grad_norm or 0.0,  # its default is a norm of 1
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        **({"bf16": {"enabled": True}} if precision == "bf16_grads" else {}),
    }
    if workload.gradient_accumulation_steps > 1:  # the trainer divides the loss and says when to step
        made["managed_gradient_accumulation"] = False
    return made


class Resident(nn.Module):
    """Keep a model's parameters on their device and in their type; fake ones cannot be moved."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the model's loss."""
        return self.model(tokens_BT, targets_BT)  # type: ignore[no-any-return]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Resident:
        return self


class EngineModel(nn.Module):
    """Run the engine's forward pass; from there to the end of the step, linear layers are the engine's."""

    fake: bool
    linear: Any

    def __init__(self, model: nn.Module, resources: Resources):
        super().__init__()
        self.module = model

    def enter(self, engine: nn.Module, fake: bool, linear: Any) -> None:
        """Run the model in `engine` from now on."""
        self.module, self.fake, self.linear = engine, fake, linear

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the model's loss; calling its `backward` reduces the gradients."""
        functional.linear = self.linear
        with optimizers.values_not_read(self.fake):
            return self.module(tokens_BT, targets_BT)  # type: ignore[no-any-return]


class EngineOptimizer(optimizers.RankOptimizer):
    """Run the engine's step, which also clips and releases the gradients."""

    def __init__(self, engine: Any, optimizer: Any, fake: bool, linear: Any, offload: Offload):
        self._engine, self._optimizer, self._fake, self._linear = engine, optimizer, fake, linear
        self._offload = offload
        self.host_private_B = offload.locked_B

    def step(self) -> None:
        """Update the shard, then gather the parameters from all ranks."""
        functional.linear = self._linear
        with optimizers.values_not_read(self._fake):
            self._engine.step()
        self._offload.refuse_full_disk()

    def zero_grad(self, keep: bool = False) -> None:
        """Do nothing: the engine's step did it."""

    def clip_grad_norm(self, max_norm: float) -> None:
        """Do nothing: the engine's step does it."""

    def state_tensors(self) -> list[Tensor]:
        """Return fp32 shards of the parameters, and the optimizer's states."""
        shards: list[Tensor] = [one for group in self._optimizer.param_groups for one in group["params"]]
        return [*shards, *optimizers.tensors_in(self._optimizer)]

    def tensors_by_kind(self) -> list[tuple[Tensor, str]]:
        """Return the tensors that the engine stores itself, with their kind of memory."""
        zero = self._engine.optimizer
        parameters = self._engine.module.parameters()
        shards = [(one.ds_tensor, "parameters") for one in parameters if hasattr(one, "ds_tensor")]
        gradients = (zero.averaged_gradients, getattr(zero, "grad_partitions_flat_buffer", None))
        buffers = [bucket.buffer for bucket in zero.ipg_buckets.values()]
        # Stage 3 takes its fp32 copies of the shards out of the optimizer's groups between updates.
        labelled = [(one, "optimizer_states") for one in getattr(zero, "fp32_partitioned_groups_flat", ())]
        labelled += [(one, "gradients") for one in tree_leaves(gradients)]
        labelled += [(one, "communication") for one in buffers]
        return [(one, kind) for one, kind in labelled if isinstance(one, Tensor)] + shards

    def full_parameters(self, model: nn.Module) -> dict[str, Tensor]:
        """Gather the parameters from all ranks, one after the other: few buffers read them from a disk."""
        from deepspeed.runtime.zero import GatheredParameters

        gathered = {}
        for name, one in model.named_parameters():
            with GatheredParameters([one] if hasattr(one, "ds_id") else []):
                gathered[name] = one.detach().clone()
        return gathered

    def full_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """Gather the gradients from all ranks."""
        from deepspeed.utils import safe_get_full_grad

        return {name: safe_get_full_grad(one) for name, one in model.named_parameters()}

    def files_B(self) -> int:
        """Return the bytes of its swap files."""
        return self._offload.files_B()

    def close(self) -> None:
        """End the engine and remove its files."""
        functional.linear = self._linear
        self._engine.destroy()
        self._offload.close()


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

    def __init__(self, settings: ZeROSettings, resources: Resources) -> None:
        self.stage, self.ratio = settings.stage, settings.ratio
        self.optimizer, self.parameters = settings.optimizer, settings.parameters
        self.host = resources.host
        self.emulated = resources.device.type == "cpu"
        self.locked_B = 0
        self._swap: tempfile.TemporaryDirectory[str] | None = None
        self._offloads = (self.optimizer, self.parameters) != ("device", "device")
        if "disk" in (self.optimizer, self.parameters):
            load("async_io")
            self._swap = tempfile.TemporaryDirectory(dir=resources.folder or None)
        if self._offloads:
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
        if not self._offloads:
            return
        self.locked_B = swap_buffers_B(zero, parameters)
        if self.optimizer == "host":
            self._states_down(zero, optimizer)
        if self.stage == 3 and self.optimizer != "device" and self.emulated:
            # As stage 3 does to widen each gradient on the device; `.to` does nothing here.
            offload = zero._offload_grad_partition_at_boundary
            zero._offload_grad_partition_at_boundary = lambda parameter, gradient, *rest: offload(
                parameter, gradient.clone(), *rest
            )

    def refuse_full_disk(self) -> None:
        """Raise `Unavailable` where the disk is full: deepspeed continues after a failed write, wrongly."""
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

    rate = optimizers.LEARNING_RATES["adamw"] if workload.learning_rate is None else workload.learning_rate
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
