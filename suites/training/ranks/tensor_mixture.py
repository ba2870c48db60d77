"""How ranks that share each layer share a mixture of experts, and modules that each of them has in full.

The router is on every rank. With sequence parallelism each routes its own tokens, as in Megatron-LM; without
it all route the same ones. Matrices of experts are split by width: the first by columns, the second by rows.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
)
from torch.distributed.tensor.placement_types import Placement

from suites.training.models.mixture import Experts
from suites.training.models.model import Transformer
from suites.training.ranks.expert_group import ExpertGroup
from suites.training.ranks.width_group import WidthGroup

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
