"""The ranks that share each expert, each with part of its width, for `expert_group.py`.

As in Megatron-LM (core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher): what these ranks
received for their experts is gathered, and the results are reduced to the rows of each. Rows differ in
number, so each rank broadcasts its own and sums are reduced to it, as NCCL does with parts that differ.

Shape suffixes as in `expert_group.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from suites.training.models.mixture import values_are_known


class WidthGroup:
    """The ranks of `mesh` share each expert; `by_sequence`: each has other tokens, else all the same ones."""

    def __init__(self, mesh: DeviceMesh, by_sequence: bool) -> None:
        self.processes, self.ranks, self.rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
        self.by_sequence = by_sequence

    def lines(self, own: list[list[int]], device: torch.device) -> list[list[list[int]]]:
        """Return what each of these ranks received, from each sender for each expert.

        Where values are not known, all have received what this one has. Ranks with the same tokens count as
        one.
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
        return Gathered.apply(rows, self, sizes)  # type: ignore[no-any-return,no-untyped-call]

    def reduce(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the sum over ranks of this rank's rows; its backward pass gathers their gradients."""
        return Reduced.apply(rows, self, sizes)  # type: ignore[no-any-return,no-untyped-call]

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
        """Return the sum over ranks of this rank's rows, or of all where they have the same.

        The rows of other ranks are overwritten.
        """
        if not self.by_sequence:
            result = rows.clone()
            dist.all_reduce(result, group=self.processes)
            return result
        parts = torch.split(rows, list(sizes))
        for rank, part in enumerate(parts):
            if len(part):
                dist.reduce(part, group_dst=rank, group=self.processes)
        return parts[self.rank].clone()


class Gathered(torch.autograd.Function):
    """See `WidthGroup.gather`."""

    @staticmethod
    def forward(context: Any, rows: Tensor, group: WidthGroup, sizes: Sequence[int]) -> Tensor:
        """Return the rows of all ranks."""
        context.group, context.sizes = group, sizes
        return group.gathered(rows, sizes)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of this rank's rows."""
        return context.group.reduced(gradients[0].contiguous(), context.sizes), None, None


class Reduced(torch.autograd.Function):
    """See `WidthGroup.reduce`."""

    @staticmethod
    def forward(context: Any, rows: Tensor, group: WidthGroup, sizes: Sequence[int]) -> Tensor:
        """Return the sum of this rank's rows."""
        context.group, context.sizes = group, sizes
        return group.reduced(rows, sizes)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradients of all ranks' rows."""
        return context.group.gathered(gradients[0].contiguous(), context.sizes), None, None
