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

Ranks that share each layer have the router each. With sequence parallelism each routes its own tokens, as in
Megatron-LM; without it all route the same ones. Matrices of experts are split by width: the first by columns,
the second by rows. As in Megatron-LM (core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher)
what the ranks that share an expert received is gathered, and results are reduced to the rows of each. Rows
differ in number, so each rank broadcasts its own, as NCCL does with parts that differ.

Shape suffixes, besides those of `models/mixture.py`: R rows that a rank's experts take, from all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
)
from torch.distributed.tensor.placement_types import Placement

from harness.records import Unavailable
from suites.training.declared import ExpertParallelSettings
from suites.training.host_memory import Resources
from suites.training.mesh import joined, refuse_without_fsdp2
from suites.training.models.mixture import Compute, Experts, shares, values_are_known
from suites.training.models.model import Transformer
from suites.training.optimizers import not_for_shards
from suites.training.step import TrainingStep
from suites.training.trainer import average_with_the_last
from suites.training.workload import Workload

NOTE = "expert parallel, rank 0: 1/ep_size of each layer's experts, their gradients and states"
REPLICATED = "expert parallel, rank 0: all other parameters, gradients and states"
EVEN = "the dry run sends every expert an equal share of the tokens; a real routing is uneven"


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


Move = Callable[[Tensor, Sequence[int]], Tensor]


class WidthGroup:
    """The ranks of `mesh` share each expert; `by_sequence`: each has other tokens, else all the same ones."""

    def __init__(self, mesh: DeviceMesh, by_sequence: bool) -> None:
        self.processes, self.ranks, self.rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
        self.by_sequence = by_sequence

    def lines(self, own: list[list[int]], device: torch.device) -> list[list[list[int]]]:
        """Return what each of these ranks received, from each sender for each expert; the same ones once.

        Where values are not known, all have received what this one has.
        """
        if not self.by_sequence:
            return [own]
        if not values_are_known():
            return [own] * self.ranks
        counts = torch.tensor(own, device=device)
        of_all = [torch.empty_like(counts) for _ in range(self.ranks)]
        dist.all_gather(of_all, counts, group=self.processes)
        return [one.tolist() for one in of_all]

    def gather(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the rows of all ranks, in their order; its backward pass reduces their gradients."""
        return _Moved.apply(rows, sizes, self.gathered, self.reduced)  # type: ignore[no-any-return,no-untyped-call]

    def reduce(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the sum over ranks of this rank's rows; its backward pass gathers their gradients."""
        return _Moved.apply(rows, sizes, self.reduced, self.gathered)  # type: ignore[no-any-return,no-untyped-call]

    def gathered(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the rows of all ranks; those that there are where all ranks have the same."""
        if not self.by_sequence:
            return rows.view_as(rows)
        result = rows.new_empty(sum(sizes), rows.shape[1])
        parts = torch.split(result, list(sizes))
        parts[self.rank].copy_(rows)
        for rank, part in enumerate(parts):
            if len(part):
                dist.broadcast(part, group_src=rank, group=self.processes)
        return result

    def reduced(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the sum over ranks of this rank's rows, or of all that are alike; others are overwritten."""
        if not self.by_sequence:
            result = rows.clone()
            dist.all_reduce(result, group=self.processes)
            return result
        parts = torch.split(rows, list(sizes))
        for rank, part in enumerate(parts):
            if len(part):
                dist.reduce(part, group_dst=rank, group=self.processes)
        return parts[self.rank].clone()


class _Moved(torch.autograd.Function):
    """Gather rows or reduce them; the backward pass does the other, see `WidthGroup`."""

    @staticmethod
    def forward(context: Any, rows: Tensor, sizes: Sequence[int], there: Move, back: Move) -> Tensor:
        context.sizes, context.back = sizes, back
        return there(rows, sizes)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return context.back(gradients[0].contiguous(), context.sizes), None, None, None


class ExpertGroup:
    """The ranks of `mesh` share each layer's experts; each has as many, in the order of the ranks.

    None: each rank has all of them. Those of `width` share each expert.
    """

    def __init__(self, mesh: DeviceMesh | None, width: WidthGroup | None = None) -> None:
        self.processes, self.ranks, self.rank = None, 1, 0
        if mesh is not None:
            self.processes, self.ranks, self.rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
        self.width = width

    def exchange(self, compute: Compute, x_MD: Tensor, counts_E: Tensor) -> Tensor:
        """Return the experts' results (M, D) for rows in the order of the experts.

        Each rank sends every row to the rank that has its expert, runs its own experts on all rows that it
        received, and returns the results. Ranks that share each expert gather what they received before, and
        sum their results after that, each for the rows that it received.
        """
        sent_E, received = self.rows(counts_E, len(x_MD))
        to_each = [sum(part) for part in self.parts(sent_E)]
        from_each = [sum(part) for part in received]
        lines = [received] if self.width is None else self.width.lines(received, counts_E.device)
        sizes = [sum(sum(part) for part in of_rank) for of_rank in lines]
        grid = [part for of_rank in lines for part in of_rank]
        by_expert = list(zip(*grid, strict=True))
        rows_RD = self.all_to_all(x_MD, to_each, from_each)  # one name: what it had before is released
        if self.width is not None:
            rows_RD = self.width.gather(rows_RD, sizes)
        rows_RD = reordered(rows_RD, grid)
        rows_RD = compute(rows_RD, [sum(part) for part in by_expert])
        rows_RD = reordered(rows_RD, by_expert)
        if self.width is not None:
            rows_RD = self.width.reduce(rows_RD, sizes)
        return self.all_to_all(rows_RD, from_each, to_each)

    def rows(self, counts_E: Tensor, total: int) -> tuple[list[int], list[list[int]]]:
        """Return the rows that each expert is sent, and those received from each rank for each expert here.

        Where values are not known, each rank sends equal shares to all experts.
        """
        if not values_are_known():
            sent_E = shares(total, len(counts_E))
            return sent_E, [self.parts(sent_E)[self.rank]] * self.ranks
        received_E = counts_E
        if self.processes is not None:
            received_E = torch.empty_like(counts_E)
            dist.all_to_all_single(received_E, counts_E, group=self.processes)
        return counts_E.tolist(), self.parts(received_E.tolist())

    def parts(self, by_expert: Sequence[int]) -> list[list[int]]:
        """Return what the experts of each rank have, of a list with an entry for every expert."""
        each = len(by_expert) // self.ranks
        return [list(by_expert[rank * each : (rank + 1) * each]) for rank in range(self.ranks)]

    def all_to_all(self, rows: Tensor, to_each: list[int], from_each: list[int]) -> Tensor:
        """Send so many rows to each rank and return those received, in the order of the ranks."""
        if self.processes is None:
            return rows
        received = rows.new_empty(sum(from_each), rows.shape[1])
        return all_to_all_single(received, rows, from_each, to_each, self.processes)  # type: ignore[no-any-return,no-untyped-call]


def reordered(rows: Tensor, sizes: Sequence[Sequence[int]]) -> Tensor:
    """Return rows, in blocks of `sizes` in a grid, with the grid's columns as rows: a copy.

    A grid of one line, or of one column, has this order already.
    """
    flat = [size for line in sizes for size in line]
    columns = len(sizes[0])
    if columns in (1, len(flat)):
        return rows
    blocks = torch.split(rows, flat)
    return torch.cat([blocks[at] for column in range(columns) for at in range(column, len(flat), columns)])


WIDTH = {"gate": 1, "up": 1, "down": 2}
"""The dimension of each stacked matrix that is an expert's width."""


class Whole(ParallelStyle):
    """Replicate a module: every rank has its parameters as replicated DTensors.

    `kept`: what a rank keeps of its output. `given`: what it has of the inputs: all, or other tokens than the
    other ranks.
    """

    def __init__(self, kept: Placement, given: Placement | None = None) -> None:
        super().__init__()
        self.kept, self.given = (kept,), (given or Replicate(),)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def distribute(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            return tuple(DTensor.from_local(one, mesh, self.given, run_check=False) for one in inputs)

        def keep(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
            if output.placements != self.kept:
                output = output.redistribute(placements=self.kept)
            return output.to_local()

        return distribute_module(module, device_mesh, None, distribute, keep)


def plan_of_mixture(shared: bool, by_sequence: bool) -> dict[str, ParallelStyle]:
    """Return how a block's router is run, and its shared expert where there is one.

    Both take tokens (N, D), of which a rank has its part with sequence parallelism.
    """
    tokens: Placement = Shard(0) if by_sequence else Replicate()
    styles: dict[str, ParallelStyle] = {"mlp.router": Whole(tokens, tokens)}
    if not shared:
        return styles
    if by_sequence:
        styles["mlp.shared"] = PrepareModuleInput(
            input_layouts=(tokens,), desired_input_layouts=(Replicate(),)
        )
    for name in ("gate", "up"):
        styles[f"mlp.shared.{name}"] = ColwiseParallel()
    styles["mlp.shared.down"] = RowwiseParallel(output_layouts=tokens)
    return styles


def experts_of(model: Transformer) -> list[Experts]:
    """Return the experts of every layer."""
    return [one for one in model.modules() if isinstance(one, Experts)]


def share_width(model: Transformer, mesh: DeviceMesh, by_sequence: bool) -> None:
    """Let the ranks of a mesh share every expert, each with part of its width."""
    group = ExpertGroup(None, WidthGroup(mesh, by_sequence))
    for experts in experts_of(model):
        spread(experts, mesh, lambda name: [Shard(WIDTH[name])])
        experts.exchange = group.exchange


def spread(experts: Experts, mesh: DeviceMesh, placements: Any) -> None:
    """Leave this rank its part of the experts: `placements` maps a weight's name to them."""
    for name, weight in list(experts.named_parameters()):
        own = distribute_tensor(weight.detach(), mesh, placements(name), src_data_rank=None)
        setattr(experts, name, nn.Parameter(own, requires_grad=weight.requires_grad))
