"""Expert parallelism (arXiv 2006.16668): ranks with different data share the experts of each layer.

Each rank has every `ep_size`-th part of a layer's experts. It sends each token to the ranks that have the
token's experts and gets their results back, by one all-to-all before the experts and one after them, whose
sizes follow the routing. In a dry run, which has no values, every expert gets an equal share of the tokens.

Alone, all ranks have all other parameters, and average their gradients after an update's last backward pass.
With `fsdp2`, `ep_size` neighbours of the ranks that shard the model share the experts, as in torchtitan: each
shards its experts over the ranks that have the same ones, and the rest of the model over all.

With `tensor_parallel` the ranks that share a layer share each of its experts, too, by width. Or, as in
torchtitan, each expert is on one rank and they are among the ranks over which experts are spread; each then
sends its own tokens, so this needs sequence parallelism. It works on `suites.training.models.model` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from harness.records import Unavailable
from suites.training.contract import EXACT, Contract
from suites.training.declared import ExpertParallelSettings
from suites.training.models.model import Transformer
from suites.training.optimizers.optimizers import not_for_shards
from suites.training.ranks.expert_group import WIDTH, ExpertGroup, WidthGroup, experts_of, spread
from suites.training.ranks.mesh import joined, refuse_without_fsdp2
from suites.training.resources import Resources
from suites.training.step import TrainingStep
from suites.training.trainer import live_gradients
from suites.training.workload import Workload

NOTE = "expert parallel, rank 0: 1/ep_size of each layer's experts, their gradients and states"
REPLICATED = "expert parallel, rank 0: all other parameters, gradients and states"
EVEN = "the dry run sends every expert an equal share of the tokens; a real routing is uneven"


def unavailable() -> str | None:
    """Return why it cannot run here; None where it can."""
    return None if dist.is_available() else "this build of torch has no torch.distributed"


def contract(settings: ExpertParallelSettings) -> Contract:
    """Return `EXACT`: the same products of the same tokens, on other ranks."""
    return EXACT


def applies_to(workload: Workload, settings: ExpertParallelSettings) -> str | None:
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


def apply(step: TrainingStep, settings: ExpertParallelSettings) -> TrainingStep:
    """Return one of `ep_size` ranks' step; `fsdp2` is applied later."""
    ep_size, with_fsdp2 = step.workload.ep_size, step.settings_of("fsdp2") is not None
    refuse_without_fsdp2(step, "expert_parallel")
    whole = refuse_without_sequences(step, settings)
    if with_fsdp2:
        refuse_indivisible(step, whole)
    changed = replace(
        step,
        ranks=ep_size,
        expert_ranks=ep_size,
        expert_tensor_ranks=1 if whole else step.tensor_ranks,
        features=replace(step.features, sharding=joined(step.features.sharding, "expert")),
        wraps=(*step.wraps, partial(parallelize, step.features.sequence_parallel)),
        notes=(*step.notes, NOTE, EVEN),
    )
    if with_fsdp2:
        return changed
    return replace(changed, reducing=average_with_the_last, notes=(*changed.notes, REPLICATED))


def refuse_without_sequences(step: TrainingStep, settings: ExpertParallelSettings) -> bool:
    """Return whether each expert is on one rank though ranks share each layer.

    Raises `Unavailable` where these ranks have the same tokens.
    """
    tensor = step.settings_of("tensor_parallel")
    if tensor is None or settings.expert_tensor_parallel:
        return False
    if not tensor.get("sequence_parallel"):
        raise Unavailable(
            "expert_parallel with expert_tensor_parallel=False needs tensor_parallel with "
            "sequence_parallel=True, so that its ranks send different tokens"
        )
    return True


def refuse_indivisible(step: TrainingStep, whole: bool) -> None:
    """Raise `Unavailable` where experts cannot be spread over the ranks; `whole`: those of tp_size too."""
    workload = step.workload
    sizes = {"dp_size": workload.dp_size}
    if step.settings_of("context_parallel") is not None and workload.cp_size > 1:
        sizes["cp_size"] = workload.cp_size
    if whole:
        sizes["tp_size"] = workload.tp_size
    if prod(sizes.values()) % workload.ep_size:
        named = " * ".join(f"{name}={size}" for name, size in sizes.items())
        raise Unavailable(f"ep_size={workload.ep_size} does not divide {named}")


def parallelize(by_sequence: bool, model: nn.Module, resources: Resources) -> nn.Module:
    """Return the model with each layer's experts shared by ranks.

    A gradient of experts sums what all ranks' tokens contribute; divided by the number of those with other
    sequences, it is that of the mean loss. `by_sequence`: ranks that share a layer have other tokens each.
    """
    assert isinstance(model, Transformer)
    meshes = resources.meshes
    mesh, width = meshes.of_experts(), None
    tensor_ranks = meshes.of("tp").size() if "tp" in meshes.names else 1
    if mesh.ndim > 1:
        width, tensor_ranks = WidthGroup(meshes.of("tp"), by_sequence), 1
    group = ExpertGroup(meshes.of("ep"), width)
    for experts in experts_of(model):
        spread(experts, mesh, lambda name: [Shard(0), Shard(WIDTH[name])][: mesh.ndim])
        experts.exchange, experts.gradient_scale = group.exchange, tensor_ranks / group.ranks
    return model


@contextmanager
def average_with_the_last(model: nn.Module, last: bool) -> Iterator[None]:
    """Average gradients but those of experts over all ranks after the last micro-batch of an update."""
    yield
    for gradient in live_gradients(model) if last else ():
        if not isinstance(gradient, DTensor):
            gradient.div_(dist.get_world_size())
            dist.all_reduce(gradient)
