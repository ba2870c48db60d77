"""Layer normalization (arXiv 1607.06450) and RMSNorm (arXiv 1910.07467), as the same Triton kernels.

Traffic in bytes per element of size s: forward 2 s (read x, write y); backward 3 s (read x and y's gradient,
write x's). In addition 8 B per row, RMSNorm 4 B, and for each vector's gradient one row of fp32 partial sums
per program, which PyTorch then adds up. Rows wider than a block are read twice, the second time from the
cache where they fit, and their partial sums are kept in memory.

CENTRED: with a mean and a bias; RMSNorm has neither, and its kernels read and write neither.
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
from suites.training.models.model import EPSILON
from suites.training.triton_kernels import tiles


@triton.autotune(tiles.WARPS, key=["columns"])
@triton.jit
def norm_forward(
    x, weight, bias, y, means, inverse, rows, columns, epsilon,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Compute y = (x - mean) inverse weight + bias, inverse = 1 / sqrt(variance + epsilon).

    Or y = x inverse weight, inverse = 1 / sqrt(mean(x^2) + epsilon). A program takes ROWS rows. The variance
    is that of centred values; blocks are combined by Chan's formula (Chan, Golub, LeVeque 1983).
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    x += row * columns
    y += row * columns
    if WHOLE:
        inside = (row < rows) & (column < columns)
        xs = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            mean = tl.sum(xs, axis=1)[:, None] / columns
            xs = tl.where(column < columns, xs - mean, 0.0)
        scale = tl.rsqrt(tl.sum(xs * xs, axis=1)[:, None] / columns + epsilon)
        result = xs * scale * tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
        if CENTRED:
            result += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(y + column, result, mask=inside)
    else:
        mean = tl.zeros((ROWS, 1), tl.float32)
        squares = tl.zeros((ROWS, 1), tl.float32)
        for first in range(0, columns, BLOCK):
            here = first + column
            xs = tl.load(x + here, mask=(row < rows) & (here < columns), other=0.0).to(tl.float32)
            if CENTRED:
                count = tl.minimum(BLOCK, columns - first)
                block_mean = tl.sum(xs, axis=1)[:, None] / count
                xs = tl.where(here < columns, xs - block_mean, 0.0)
                share = count.to(tl.float32) / (first + count)
                step = block_mean - mean
                squares += step * step * share * first
                mean += step * share
            squares += tl.sum(xs * xs, axis=1)[:, None]
        scale = tl.rsqrt(squares / columns + epsilon)
        for first in range(0, columns, BLOCK):
            here = first + column
            inside = (row < rows) & (here < columns)
            xs = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
            weights = tl.load(weight + here, mask=here < columns, other=0.0).to(tl.float32)
            result = (xs - mean) * scale * weights
            if CENTRED:
                result += tl.load(bias + here, mask=here < columns, other=0.0).to(tl.float32)
            tl.store(y + here, result, mask=inside)
    if CENTRED:
        tl.store(means + row, mean, mask=row < rows)
    tl.store(inverse + row, scale, mask=row < rows)


@triton.autotune(tiles.STAGED_WARPS, key=["columns"])
@triton.jit
def norm_backward(
    x, weight, gradient, means, inverse, x_gradient, partial, rows, columns,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of x, weight and bias.

    With n = (x - mean) inverse, of x: inverse (g weight - mean(g weight) - n mean(g weight n)), of which
    RMSNorm lacks the middle. Of weight, the sum over rows of g n; of bias, that of g. A program takes rows at
    a stride, ROWS full rows at once, and keeps one row of sums of either kind.
    """
    column = tl.arange(0, BLOCK)[None, :]
    weights = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    weight_total = tl.zeros((ROWS, BLOCK), tl.float32)
    bias_total = tl.zeros((ROWS, BLOCK), tl.float32)
    for part in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tl.cast(part, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < columns)
        at = row * columns + column
        normal = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            normal -= tl.load(means + row, mask=row < rows, other=0.0)
        scale = tl.load(inverse + row, mask=row < rows, other=0.0)
        normal *= scale
        weighted = g * weights
        along = tl.sum(weighted * normal, axis=1)[:, None] / columns
        if CENTRED:
            weighted -= tl.sum(weighted, axis=1)[:, None] / columns
            bias_total += g
        tl.store(x_gradient + at, scale * (weighted - normal * along), mask=inside)
        weight_total += g * normal
    sums = partial + tl.program_id(0).to(tl.int64) * (2 if CENTRED else 1) * columns + column
    tl.store(sums, tl.sum(weight_total, axis=0)[None, :], mask=column < columns)
    if CENTRED:
        tl.store(sums + columns, tl.sum(bias_total, axis=0)[None, :], mask=column < columns)


@triton.autotune(tiles.WARPS, key=["columns"], reset_to_zero=["partial"])
@triton.jit
def norm_backward_wide(
    x, weight, gradient, means, inverse, x_gradient, partial, rows, columns,
    CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the same by rows, BLOCK columns at once; `partial` starts at zero and collects the sums."""
    column = tl.arange(0, BLOCK)
    partial += tl.program_id(0).to(tl.int64) * (2 if CENTRED else 1) * columns
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.cast(row, tl.int64) * columns
        mean = 0.0
        if CENTRED:
            mean = tl.load(means + row)
        scale = tl.load(inverse + row)
        along = tl.zeros((BLOCK,), tl.float32)
        level = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, columns, BLOCK):
            here = first + column
            xs = tl.load(x + start + here, mask=here < columns, other=0.0).to(tl.float32)
            g = tl.load(gradient + start + here, mask=here < columns, other=0.0).to(tl.float32)
            weighted = g * tl.load(weight + here, mask=here < columns, other=0.0).to(tl.float32)
            along += weighted * (xs - mean) * scale
            if CENTRED:
                level += weighted
        along = tl.sum(along, axis=0) / columns
        level = tl.sum(level, axis=0) / columns
        for first in range(0, columns, BLOCK):
            here = first + column
            xs = tl.load(x + start + here, mask=here < columns, other=0.0).to(tl.float32)
            g = tl.load(gradient + start + here, mask=here < columns, other=0.0).to(tl.float32)
            weighted = g * tl.load(weight + here, mask=here < columns, other=0.0).to(tl.float32)
            normal = (xs - mean) * scale
            x_gradients = scale * (weighted - level - normal * along)
            tl.store(x_gradient + start + here, x_gradients, mask=here < columns)
            sums = partial + here
            weight_total = tl.load(sums, mask=here < columns, other=0.0) + g * normal
            tl.store(sums, weight_total, mask=here < columns)
            if CENTRED:
                bias_total = tl.load(sums + columns, mask=here < columns, other=0.0) + g
                tl.store(sums + columns, bias_total, mask=here < columns)


class Norm(torch.autograd.Function):
    """Either norm; `bias`: None of RMSNorm. What a kernel does not read has a tensor of its type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the norm of each row."""
        x, weight, centred = x.contiguous(), weight.contiguous(), bias is not None
        y, columns = torch.empty_like(x), x.shape[-1]
        rows, shape = x.numel() // columns, tiles.tile(columns)
        statistics = torch.empty(2 if centred else 1, rows, dtype=torch.float32, device=x.device)
        inverse, means = statistics[-1], statistics[0]
        tensors = (x, weight, weight if bias is None else bias.contiguous(), y, means, inverse)
        grid = (triton.cdiv(rows, shape.rows),)
        launch(norm_forward, grid, *tensors, rows, columns, EPSILON, centred, *shape)
        ctx.save_for_backward(x, weight, means, inverse)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of all inputs."""
        x, weight, means, inverse = ctx.saved_tensors
        x_gradient, columns = torch.empty_like(x), x.shape[-1]
        rows, shape = x.numel() // columns, tiles.tile(columns, tiles.WIDEST_WITH_SUMS)
        count, centred = tiles.programs(triton.cdiv(rows, shape.rows), x), ctx.bias_dtype is not None
        allocate = torch.empty if shape.whole else torch.zeros
        partial = allocate(count, 2 if centred else 1, columns, dtype=torch.float32, device=x.device)
        tensors = (x, weight, gradient.contiguous(), means, inverse, x_gradient, partial)
        arguments = (*tensors, rows, columns, centred)
        if shape.whole:
            launch(norm_backward, (count,), *arguments, ROWS=shape.rows, BLOCK=shape.block)
        else:
            launch(norm_backward_wide, (count,), *arguments, BLOCK=shape.block)
        of_weight, *of_bias = partial.sum(0)
        return x_gradient, of_weight.to(weight.dtype), of_bias[0].to(ctx.bias_dtype) if centred else None


def layer_norm(x_ND: Tensor, weight_D: Tensor, bias_D: Tensor) -> Tensor:
    """Map (N, D), (D) and (D) to (N, D), with any leading dimensions; differentiable once."""
    return Norm.apply(x_ND, weight_D, bias_D)  # type: ignore[no-any-return]


def constexprs(centred: bool) -> dict[str, Any]:
    """Return those of both kernels for rows of TYPICAL_COLUMNS."""
    rows, block, whole = tiles.tile(tiles.TYPICAL_COLUMNS, tiles.WIDEST_WITH_SUMS)
    return {"CENTRED": centred, "ROWS": rows, "BLOCK": block, "WHOLE": whole, "STAGES": 1}


def kernels(workload_dtype: str) -> list[Compilation]:
    """Return both kernels, for inputs of type fp32 | bf16 | fp16 in rows of TYPICAL_COLUMNS."""
    of = {"layer_norm_forward": norm_forward, "layer_norm_backward": norm_backward}
    return tiles.compilations(workload_dtype, constexprs(centred=True), of)
