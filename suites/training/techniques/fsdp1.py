"""torch's first FSDP (arXiv 2304.11277), `FullyShardedDataParallel`: flat parameters, one per layer.

Each layer is a unit that is gathered before it is used; the rest of the model is a unit, too. `fsdp2` shards
each parameter by itself and is what torch recommends; many published runs are of this one. Its mixed
precision takes the place of autocast: sharded parameters stay in fp32, and a bf16 copy of a rank's shard is
made to gather from. With `lora`, where all is in bf16, a layer's frozen and trained parameters are one flat
parameter, which has a gradient of its whole size.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from harness.records import Unavailable
from suites.training.declared import FSDP1Settings
from suites.training.host_memory import Resources
from suites.training.models.model import blocks_of
from suites.training.optimizers import TorchOptimizer, make_torch_optimizer
from suites.training.step import DTYPES, EXACT, Contract, TrainingStep, Within, no_context
from suites.training.techniques.ddp import BF16_REDUCTION, reduce_with_the_last
from suites.training.workload import Workload

NOTE = (
    "FSDP1, rank 0: flat shards of parameters, gradients and states, and gathered units; its streams are not "
    "simulated, so that reserved memory is a lower bound"
)
STAY_GATHERED = "the formula has sharded parameters; this step's stay gathered until the backward pass"
TWO_TYPES = (
    "fsdp1 does not combine with lora: a flat parameter has one type, and LoRA's base has another than its "
    "adapters; use fsdp2"
)
INSIDE = "_fsdp_wrapped_module."
"""What FSDP inserts into names of parameters."""


def contract(settings: FSDP1Settings) -> Contract:
    """Return `EXACT`, the mean over ranks in another order; or the tolerance of gradients sent in bf16."""
    return Within(BF16_REDUCTION) if settings.reduce_dtype == "bf16" else EXACT


def applies_to(workload: Workload, settings: FSDP1Settings) -> str | None:
    """Return why an optimizer cannot update flat shards; None where it can."""
    if workload.optimizer in ("adafactor", "muon"):
        return f"{workload.optimizer} needs matrices, and a rank has flat parts of them"
    return None


def apply(step: TrainingStep, settings: FSDP1Settings) -> TrainingStep:
    """Return one of `dp_size` ranks' step; FSDP's own mixed precision takes the place of autocast."""
    if step.make_optimizer is not None:
        raise Unavailable("fsdp1 updates its shards with torch's own optimizer only")
    mixed = step.features.precision == "autocast"
    adapters = step.settings_of("lora")
    if adapters is not None and (adapters.get("base"), adapters.get("adapter_dtype")) != ("bf16", "bf16"):
        raise Unavailable(TWO_TYPES)
    if settings.reduce_dtype == "bf16" and not mixed:
        raise Unavailable("fsdp1: reduce_dtype=bf16 is part of its mixed precision; list mixed_precision too")
    unlike = STAY_GATHERED if settings.strategy == "shard_grad_op" else ""
    return replace(
        step,
        ranks=step.workload.dp_size,
        features=step.features.but(sharding="zero3", states=unlike),
        around=no_context if mixed else step.around,
        reducing=step.reducing if settings.reduce_every_micro_batch else reduce_with_the_last,
        wraps=(*step.wraps, partial(shard, settings, mixed)),
        make_optimizer=ShardOptimizer,
        notes=(*step.notes, NOTE),
    )


def shard(settings: FSDP1Settings, mixed: bool, model: nn.Module, resources: Resources) -> nn.Module:
    """Return the model with each layer as a unit, and the rest as another."""
    if not dist.is_initialized():
        raise RuntimeError("no process group: enter fake_process_group, or start real ranks, before sharding")
    policy = None
    if mixed:
        policy = MixedPrecision(
            param_dtype=torch.bfloat16,
            reduce_dtype=DTYPES[settings.reduce_dtype],
            buffer_dtype=torch.bfloat16,
        )
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({type(block) for block in blocks_of(model)}),
        sharding_strategy=ShardingStrategy[settings.strategy.upper()],
        mixed_precision=policy,
        device_id=resources.device,
        use_orig_params=True,
    )


class ShardOptimizer(TorchOptimizer):
    """torch's optimizer over a rank's flat shards."""

    def __init__(self, model: nn.Module, workload: Workload, resources: Resources) -> None:
        assert isinstance(model, FullyShardedDataParallel)
        parameters = list(model.parameters())
        super().__init__(parameters, make_torch_optimizer(parameters, workload))
        self.model = model

    def clip_grad_norm(self, max_norm: float) -> None:
        """Clip the norm of all ranks' gradients together."""
        self.model.clip_grad_norm_(max_norm)

    def full_parameters(self, model: nn.Module) -> dict[str, Tensor]:
        """Gather the parameters from all ranks."""
        with FullyShardedDataParallel.summon_full_params(self.model, writeback=False):
            return {plain(name): one.detach().clone() for name, one in model.named_parameters()}

    def full_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """Gather the gradients from all ranks."""
        with FullyShardedDataParallel.summon_full_params(self.model, writeback=False, with_grads=True):
            gradients = {plain(name): one.grad for name, one in model.named_parameters()}
            return {name: one.clone() for name, one in gradients.items() if one is not None}


def plain(name: str) -> str:
    """Return a parameter's name from before FSDP."""
    return name.replace(INSIDE, "")
