"""Expert parallelism (arXiv 2006.16668): ranks with different data share the experts of each layer.

Each rank has every `ep_size`-th part of a layer's experts. It sends each token to the ranks that have the
token's experts and gets their results back, by one all-to-all before the experts and one after them, whose
sizes follow the routing. In a dry run, which has no values, every expert gets an equal share of the tokens.

Alone, all ranks have all other parameters, and average their gradients after an update's last backward pass.
With `fsdp2`, `ep_size` neighbours of the ranks that shard the model share the experts, as in torchtitan: each
shards its experts over the ranks that have the same ones, and the rest of the model over all.

What it does not combine with follows from `ROLE` and `EXCLUDES` of either module, and from what `applies_to`
and `apply` refuse. It works on `suites.training.models.model` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from harness.records import Unavailable
from suites.training.contract import EXACT, Contract
from suites.training.models.mixture import Experts
from suites.training.models.model import Transformer
from suites.training.optimizers.optimizers import not_for_shards
from suites.training.ranks.expert_group import ExpertGroup
from suites.training.ranks.mesh import joined, refuse_without_fsdp2
from suites.training.step import Level, Role, TrainingStep
from suites.training.trainer import live_gradients
from suites.training.workload import Resources, Workload

LEVEL = Level.EXPERT_PARALLELISM
ROLE = Role.EXPERT_PARALLELISM
EXCLUDES = {
    "tensor_parallel": "how ranks that share each layer would share its experts is not built",
    "ddp": "ranks that share experts form a mesh with fsdp2 alone",
    "fsdp1": "ranks that share experts form a mesh with fsdp2 alone",
    "zero": "ranks that share experts form a mesh with fsdp2 alone",
    "host_update": "ranks that share experts form a mesh with fsdp2 alone",
    "local_sgd": "ranks that share experts form a mesh with fsdp2 alone",
    "activation_offload": "saved distributed tensors have no storage of their own to copy",
    "lora": "adapters next to experts of other ranks are not checked",
    "llama_adapter": "adapters next to experts of other ranks are not checked",
}

NOTE = "expert parallel, rank 0: 1/ep_size of each layer's experts, their gradients and states"
REPLICATED = "expert parallel, rank 0: all other parameters, gradients and states"
EVEN = "the dry run sends every expert an equal share of the tokens; a real routing is uneven"


@dataclass(frozen=True, slots=True)
class Settings:
    """Set nothing: the workload's `ep_size` is the number of ranks that share each layer's experts."""


def unavailable() -> str | None:
    """Return why it cannot run here; None where it can."""
    return None if dist.is_available() else "this build of torch has no torch.distributed"


def contract(settings: Settings) -> Contract:
    """Return `EXACT`: the same products of the same tokens, on other ranks."""
    return EXACT


def applies_to(workload: Workload, settings: Settings) -> str | None:
    """Return why ranks cannot share experts; None where they can."""
    if workload.other_code:
        return "it shares the experts of suites.training.models.model alone, not another model's"
    if workload.num_experts is None:
        return "the model has one MLP per layer; set num_experts for a mixture of experts"
    if workload.ep_size == 1:
        return "it needs several ranks per layer's experts, and this workload has ep_size=1"
    if workload.num_experts % workload.ep_size:
        return f"ep_size={workload.ep_size} does not divide num_experts={workload.num_experts}"
    return not_for_shards(workload)


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return one of `ep_size` ranks' step; `fsdp2` is applied later."""
    ep_size, with_fsdp2 = step.workload.ep_size, step.settings_of("fsdp2") is not None
    refuse_without_fsdp2(step, "expert_parallel")
    workload = step.workload
    sequences_shared = 1 if step.settings_of("context_parallel") is None else workload.cp_size
    if with_fsdp2 and workload.dp_size * sequences_shared % ep_size:
        shared = f" * cp_size={sequences_shared}" if sequences_shared > 1 else ""
        raise Unavailable(f"ep_size={ep_size} does not divide dp_size={workload.dp_size}{shared}")
    changed = replace(
        step,
        ranks=ep_size,
        expert_ranks=ep_size,
        features=replace(step.features, sharding=joined(step.features.sharding, "expert")),
        wraps=(*step.wraps, parallelize),
        notes=(*step.notes, NOTE, EVEN),
    )
    if with_fsdp2:
        return changed
    return replace(changed, reducing=average_with_the_last, notes=(*changed.notes, REPLICATED))


def parallelize(model: nn.Module, resources: Resources) -> nn.Module:
    """Return the model with each layer's experts shared by ranks.

    A gradient of experts sums what all ranks' tokens contribute; divided by the number of those ranks, it is
    that of the mean loss.
    """
    assert isinstance(model, Transformer)
    mesh = resources.meshes.of("ep")
    group = ExpertGroup(mesh)
    for experts in [one for one in model.modules() if isinstance(one, Experts)]:
        for name, weight in list(experts.named_parameters()):
            own = distribute_tensor(weight.detach(), mesh, [Shard(0)], src_data_rank=None)
            setattr(experts, name, nn.Parameter(own, requires_grad=weight.requires_grad))
        experts.exchange, experts.gradient_scale = group.exchange, 1 / group.ranks
    return model


@contextmanager
def average_with_the_last(model: nn.Module, last: bool) -> Iterator[None]:
    """Average gradients but those of experts over all ranks after the last micro-batch of an update."""
    yield
    for gradient in live_gradients(model) if last else ():
        if not isinstance(gradient, DTensor):
            gradient.div_(dist.get_world_size())
            dist.all_reduce(gradient)
