"""Softmax over the last dimension, as Triton kernels.

Traffic in bytes per element of size s: forward 2 s (read x, write y); backward 3 s (read y and its gradient,
write that of x). Rows wider than a block are read twice, the second time from the cache where they fit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from harness.instruments.triton_kernels.launch import launch
from harness.instruments.triton_kernels.targets import Compilation
from suites.training.triton_kernels.tiles import TYPICAL_COLUMNS, WARPS, compilations, tile

LOWEST = tl.constexpr(-3.4028234663852886e38)  # finite, so that a block of -inf leaves no NaN


@triton.autotune(WARPS, key=["columns"])
@triton.jit
def softmax_forward(x, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Compute y = exp(x - max) / sum(exp(x - max)); a program takes ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    x += row * columns
    y += row * columns
    if WHOLE:
        inside = (row < rows) & (column < columns)
        logits = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        logits = tl.where(column < columns, logits, LOWEST)
        weights = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        weights = tl.where(column < columns, weights, 0.0)
        tl.store(y + column, weights * (1 / tl.sum(weights, axis=1))[:, None], mask=inside)
    else:
        largest = tl.full((ROWS,), LOWEST, tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        for first in range(0, columns, BLOCK):
            inside = (row < rows) & (first + column < columns)
            logits = tl.load(x + first + column, mask=inside, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(largest, tl.max(logits, axis=1))
            total = total * tl.exp(largest - higher) + tl.sum(tl.exp(logits - higher[:, None]), axis=1)
            largest = higher
        for first in range(0, columns, BLOCK):
            inside = (row < rows) & (first + column < columns)
            logits = tl.load(x + first + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(
                y + first + column, tl.exp(logits - largest[:, None]) * (1 / total)[:, None], mask=inside
            )


@triton.autotune(WARPS, key=["columns"])
@triton.jit
def softmax_backward(
    y, gradient, x_gradient, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr
):
    """Compute the gradient of x, y (gradient - sum(gradient y)); a program takes ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    y += row * columns
    gradient += row * columns
    x_gradient += row * columns
    if WHOLE:
        inside = (row < rows) & (column < columns)
        weights = tl.load(y + column, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gradient + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(x_gradient + column, weights * (g - tl.sum(g * weights, axis=1)[:, None]), mask=inside)
    else:
        total = tl.zeros((ROWS,), tl.float32)
        for first in range(0, columns, BLOCK):
            inside = (row < rows) & (first + column < columns)
            weights = tl.load(y + first + column, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(gradient + first + column, mask=inside, other=0.0).to(tl.float32)
            total += tl.sum(g * weights, axis=1)
        for first in range(0, columns, BLOCK):
            inside = (row < rows) & (first + column < columns)
            weights = tl.load(y + first + column, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(gradient + first + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(x_gradient + first + column, weights * (g - total[:, None]), mask=inside)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y, columns = torch.empty_like(x), x.shape[-1]
        rows, shape = x.numel() // columns, tile(columns)
        launch(softmax_forward, (triton.cdiv(rows, shape.rows),), x, y, rows, columns, *shape)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        x_gradient, columns = torch.empty_like(y), y.shape[-1]
        rows, shape = y.numel() // columns, tile(columns)
        grid = (triton.cdiv(rows, shape.rows),)
        launch(softmax_backward, grid, y, gradient.contiguous(), x_gradient, rows, columns, *shape)
        return x_gradient


def softmax(x_ND: Tensor) -> Tensor:
    """Map (N, D) to (N, D), with any leading dimensions; differentiable once."""
    return _Softmax.apply(x_ND)  # type: ignore[no-any-return]


def kernels(workload_dtype: str) -> list[Compilation]:
    """Return both kernels, for inputs of type fp32 | bf16 | fp16 in rows of TYPICAL_COLUMNS."""
    constexprs = dict(zip(("ROWS", "BLOCK", "WHOLE"), tile(TYPICAL_COLUMNS), strict=True))
    of = {"softmax_forward": softmax_forward, "softmax_backward": softmax_backward}
    return compilations(workload_dtype, constexprs, of)
