"""Linear layers of tensor parallelism with Megatron's sequence parallelism: activations sharded by rows.

Each is an all-gather or a reduce-scatter with its product; its gradient is the other of the two. Where a
reduce-scatter overlaps, the weight's gradient is computed while its last parts are under way, as in Megatron;
after an all-gather, it is summed over the rows as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from suites.overlap.operations.collectives import AllGather, RankGroup, ReduceScatter
from suites.overlap.subject import Subject


class Layer:
    """A weight's part on this rank, with collectives of its own for forward and backward.

    Both move `rows` of this rank with `columns`. As each is used once per step, `gather.gathered` stays as
    it is from the forward to the backward pass. `chunks` are those of the next pass.
    """

    def __init__(self, subject: Subject, group: RankGroup, rows: int, columns: int) -> None:
        self.chunks, self.gathered_rows = 1, group.ranks * rows
        self.gather = AllGather(subject, group, rows, columns)
        self.scatter = ReduceScatter(subject, group, rows, columns)

    @property
    def sent_B(self) -> float:
        """Return the bytes that this rank sends in a forward and a backward pass."""
        return self.gather.sent_B + self.scatter.sent_B


class ColumnParallel(Layer):
    """y (all rows, columns / ranks) = all-gather(x) @ w."""

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """Return this rank's columns of the product of all ranks' rows."""
        y: Tensor = _AllGatherGemm.apply(x, w, self)  # type: ignore[no-untyped-call]
        return y


class RowParallel(Layer):
    """y (own rows, columns) = this rank's rows of the sum over ranks of x (all rows, inner / ranks) @ w."""

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """Return this rank's rows of the sum of products."""
        y: Tensor = _GemmReduceScatter.apply(x, w, self)  # type: ignore[no-untyped-call]
        return y


class _AllGatherGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, layer: ColumnParallel) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(w)
        return gathered_product(layer, x, w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        layer, (w,), dy = ctx.layer, ctx.saved_tensors, gradients[0].contiguous()
        dw = torch.empty_like(w)
        dx = scattered_product(layer, dy, w.t(), lambda: torch.mm(layer.gather.gathered.t(), dy, out=dw))
        return dx, dw, None


class _GemmReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, layer: RowParallel) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x, w)
        return scattered_product(layer, x, w, lambda: None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        layer, (x, w), dy = ctx.layer, ctx.saved_tensors, gradients[0].contiguous()
        dw = torch.zeros_like(w)

        def weight_gradient(rows: Tensor, first: int) -> None:
            dw.addmm_(x[first : first + len(rows)].t(), rows)

        return gathered_product(layer, dy, w.t(), weight_gradient), dw, None


def gathered_product(
    layer: Layer, x: Tensor, w: Tensor, also: Callable[[Tensor, int], None] | None = None
) -> Tensor:
    """Return the product of all ranks' rows with w.

    `also(rows, first)` is other computation with these rows. Without it, `gathered` then has all rows.
    """
    y = x.new_empty(layer.gathered_rows, w.shape[1])

    def product(rows: Tensor, first: int) -> None:
        torch.mm(rows, w, out=y[first : first + len(rows)])
        if also is not None:
            also(rows, first)

    layer.gather.multiply(x, product, layer.chunks, keep=also is None)
    return y


def scattered_product(layer: Layer, x: Tensor, w: Tensor, meanwhile: Callable[[], Any]) -> Tensor:
    """Return this rank's rows of the sum over ranks of x @ w."""
    y = x.new_empty(layer.scatter.rows, w.shape[1])

    def product(first: int, rows: Tensor) -> None:
        torch.mm(x[first : first + len(rows)], w, out=rows)

    layer.scatter.multiply(product, y, layer.chunks, meanwhile)
    return y
