"""gelu(x + bias) in its tanh form, as Triton kernels over tiles of rows and columns.

Traffic in bytes per element of size s: forward 2 s (read x, write y); backward 3 s (read x and y's gradient,
write x's). The bias adds one row, and its gradient one row of fp32 partial sums per row group, which
PyTorch then adds up.
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
from suites.training.triton_kernels import tiles

WIDTH = 512  # columns of a tile at most: long enough for full cache lines
SLOPE = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi), arXiv 1606.08415
CUBIC = tl.constexpr(0.044715)


@triton.autotune(tiles.WARPS, key=["columns"])
@triton.jit
def gelu_bias_forward(x, bias, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute y = v/2 (1 + tanh(u)) = v sigmoid(2 u), v = x + bias, u = SLOPE (v + CUBIC v^3).

    A program takes a tile.
    """
    across = tl.cdiv(columns, BLOCK)
    column = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = (row < rows) & (column < columns)
    at = row * columns + column
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    v += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    u = v * SLOPE * (1 + v * v * CUBIC)
    tl.store(y + at, v * tl.sigmoid(2 * u), mask=inside)


@triton.autotune(tiles.WARPS, key=["columns"])
@triton.jit
def gelu_bias_backward(
    x, bias, gradient, x_gradient, partial, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute the gradient of x and v: g (s + 2 v s (1 - s) u').

    Here s = sigmoid(2 u), u' = SLOPE (1 + 3 CUBIC v^2). A program moves down one strip of BLOCK columns in
    steps of its row group and keeps the strip's sum.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    biases = tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for part in range(tl.program_id(1), tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = tl.cast(part, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < columns)
        at = row * columns + column
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + biases
        g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        s = tl.sigmoid(2 * v * SLOPE * (1 + v * v * CUBIC))
        g *= s + 2 * v * s * (1 - s) * SLOPE * (1 + 3 * v * v * CUBIC)
        tl.store(x_gradient + at, g, mask=inside)
        total += g
    sums = tl.sum(total, axis=0)[None, :]
    tl.store(partial + tl.program_id(1) * columns + column, sums, mask=column < columns)


def _tile(columns: int) -> tuple[int, int]:
    """Return the rows and columns of a tile."""
    width = min(triton.next_power_of_2(columns), WIDTH)
    return tiles.TILE_ELEMENTS // width, width


class _GELUBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        x, bias = x.contiguous(), bias.contiguous()
        y, columns = torch.empty_like(x), x.shape[-1]
        rows, (height, width) = x.numel() // columns, _tile(columns)
        grid = (triton.cdiv(rows, height) * triton.cdiv(columns, width),)
        launch(gelu_bias_forward, grid, x, bias, y, rows, columns, height, width)
        ctx.save_for_backward(x, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        return gelu_bias_gradients(x, bias, gradient)


def gelu_bias_gradients(x: Tensor, bias: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the bias from that of gelu(x + bias); x and bias are contiguous."""
    x_gradient, columns = torch.empty_like(x), x.shape[-1]
    rows, (height, width) = x.numel() // columns, _tile(columns)
    down, strips = triton.cdiv(rows, height), triton.cdiv(columns, width)
    groups = min(down, max(1, tiles.programs(down * strips, x) // strips))
    partial = torch.empty(groups, columns, dtype=torch.float32, device=x.device)
    tensors = (x, bias, gradient.contiguous(), x_gradient, partial)
    launch(gelu_bias_backward, (strips, groups), *tensors, rows, columns, height, width)
    return x_gradient, partial.sum(0).to(bias.dtype)


def gelu_bias(x_ND: Tensor, bias_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D), with any leading dimensions; differentiable once."""
    return _GELUBias.apply(x_ND, bias_D)  # type: ignore[no-any-return]


def kernels(workload_dtype: str) -> list[Compilation]:
    """Return both kernels, for inputs of type fp32 | bf16 | fp16 in rows of TYPICAL_COLUMNS."""
    constexprs = dict(zip(("ROWS", "BLOCK"), _tile(tiles.TYPICAL_COLUMNS), strict=True))
    of = {"gelu_bias_forward": gelu_bias_forward, "gelu_bias_backward": gelu_bias_backward}
    return tiles.compilations(workload_dtype, constexprs, of)
