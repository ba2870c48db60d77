"""ZeRO (arXiv 1910.02054) by deepspeed's engine: it shards optimizer states, gradients and parameters.

States and parameters may be on the device, on the host (ZeRO-Offload, arXiv 2101.06840) or on a disk
(ZeRO-Infinity, arXiv 2104.07857). The same engine runs on real tensors and on fake ones, see
`plain_numbers.py`. deepspeed's mixed precision, with bf16 gradients, takes the place of autocast.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from harness.instruments import torch_internals
from harness.instruments.distributed.deepspeed_engine import choose_accelerator, initialize
from harness.records import Unavailable
from suites.training.contract import EXACT, Contract
from suites.training.declared import ZeROSettings
from suites.training.dry_run.plain_numbers import values_not_read
from suites.training.models.model import blocks_of
from suites.training.offload.deepspeed_offload import Offload, cpu_adam
from suites.training.optimizers.optimizers import RankOptimizer, make_torch_optimizer, tensors_in
from suites.training.resources import Resources
from suites.training.step import TrainingStep, no_context
from suites.training.workload import Workload

DEFAULT_BUCKET = 500_000_000
"""Elements of deepspeed's communication buckets by default; here at most as many as the model's parameters.

Otherwise a small model's bytes would be those of the buckets alone: 2 GB in fp32.
"""

PRECISIONS = {"fp32": "fp32", "autocast": "bf16_grads", "bf16_grads": "bf16_grads"}
"""The precision of a step before it, and with it: deepspeed's mixed precision has bf16 gradients."""

NOTE = (
    "deepspeed's ZeRO stage {stage}, rank 0: flat buffers of the shards; buckets of at most {bucket} "
    "elements; all on one stream, so that a GPU can reserve more"
)


def unavailable() -> str | None:
    """Return why deepspeed cannot run here; None where it can."""
    return "deepspeed is not installed" if importlib.util.find_spec("deepspeed") is None else None


def contract(settings: ZeROSettings) -> Contract:
    """Return `EXACT`: the mean over ranks, in another order; mixed precision has a contract of its own."""
    return EXACT


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
        notes=(*step.notes, NOTE.format(stage=settings.stage, bucket=DEFAULT_BUCKET)),
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
    offload = Offload(settings.stage, settings.optimizer, settings.parameters, settings.ratio, resources)
    sizes = Sizes(model.module)
    if settings.optimizer == "device":
        optimizer = make_torch_optimizer(parameters, workload)
    else:
        optimizer = cpu_adam(parameters, workload)
    plain = functional.linear
    try:
        with values_not_read(fake):
            arguments = config(settings, precision, workload, sizes)
            offload.configure(arguments["zero_optimization"], sizes.largest, sizes.ranks)
            engine = initialize(Resident(model.module), optimizer, arguments)
        model.enter(engine, fake, functional.linear)  # stage 3 has put one of its own there, for good
    finally:
        functional.linear = plain
    offload.take_down(engine.optimizer, optimizer, list(model.parameters()))
    return EngineOptimizer(engine, optimizer, fake, plain, offload)


def config(settings: ZeROSettings, precision: str, workload: Workload, sizes: Sizes) -> dict[str, Any]:
    """Return deepspeed's defaults, except for clipping, and for sizes that are made for large models."""
    block = max(sizes.block, sizes.largest)
    bucket = min(DEFAULT_BUCKET, sizes.all) if settings.buckets == "model" else block
    bucket += bucket % 2  # its engine asks for an even number
    zero = {"stage": settings.stage, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
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
        with values_not_read(self.fake):
            return self.module(tokens_BT, targets_BT)  # type: ignore[no-any-return]


class EngineOptimizer(RankOptimizer):
    """Run the engine's step, which also clips and releases the gradients."""

    def __init__(self, engine: Any, optimizer: Any, fake: bool, linear: Any, offload: Offload):
        self._engine, self._optimizer, self._fake, self._linear = engine, optimizer, fake, linear
        self._offload = offload
        self.host_private_B = offload.locked_B

    def step(self) -> None:
        """Update the shard, then gather the parameters from all ranks."""
        functional.linear = self._linear
        with values_not_read(self._fake):
            self._engine.step()
        self._offload.refuse_full_disk()

    def zero_grad(self, keep: bool = False) -> None:
        """Do nothing: the engine's step did it."""

    def clip_grad_norm(self, max_norm: float) -> None:
        """Do nothing: the engine's step does it."""

    def state_tensors(self) -> list[Tensor]:
        """Return fp32 shards of the parameters, and the optimizer's states."""
        shards: list[Tensor] = [one for group in self._optimizer.param_groups for one in group["params"]]
        return [*shards, *tensors_in(self._optimizer)]

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
