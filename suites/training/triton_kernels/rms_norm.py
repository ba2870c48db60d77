"""RMSNorm (arXiv 1910.07467), as Triton kernels.

Traffic in bytes per element of size s: forward 2 s (read x, write y); backward 3 s (read x and y's gradient,
write x's). In addition 4 B per row, and for the weight's gradient one row of fp32 partial sums per
program, which PyTorch then adds up. Rows wider than a block are read twice, the second time from the cache
where they fit, and their partial sums are kept in memory.
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
from suites.training.triton_kernels.tiles import (
    STAGED_WARPS,
    TYPICAL_COLUMNS,
    WARPS,
    WIDEST_WITH_SUMS,
    compilations,
    programs,
    tile,
)


@triton.autotune(WARPS, key=["columns"])
@triton.jit
def rms_norm_forward(
    x, weight, y, inverse, rows, columns, epsilon,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Compute y = x inverse weight, inverse = 1 / sqrt(mean(x^2) + epsilon); a program takes ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    x += row * columns
    y += row * columns
    if WHOLE:
        inside = (row < rows) & (column < columns)
        xs = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(xs * xs, axis=1)[:, None] / columns + epsilon)
        weights = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(y + column, xs * scale * weights, mask=inside)
    else:
        squares = tl.zeros((ROWS, 1), tl.float32)
        for first in range(0, columns, BLOCK):
            inside = (row < rows) & (first + column < columns)
            xs = tl.load(x + first + column, mask=inside, other=0.0).to(tl.float32)
            squares += tl.sum(xs * xs, axis=1)[:, None]
        scale = tl.rsqrt(squares / columns + epsilon)
        for first in range(0, columns, BLOCK):
            here = first + column
            inside = (row < rows) & (here < columns)
            xs = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
            weights = tl.load(weight + here, mask=here < columns, other=0.0).to(tl.float32)
            tl.store(y + here, xs * scale * weights, mask=inside)
    tl.store(inverse + row, scale, mask=row < rows)


@triton.autotune(STAGED_WARPS, key=["columns"])
@triton.jit
def rms_norm_backward(
    x, weight, gradient, inverse, x_gradient, partial, rows, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of x and weight.

    With n = x inverse, dx = inverse (g weight - n mean(g weight n)), and dweight is the sum of g n. A program
    takes rows at a stride, ROWS full rows at once, and keeps one row of sums.
    """
    column = tl.arange(0, BLOCK)[None, :]
    weights = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for part in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tl.cast(part, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < columns)
        at = row * columns + column
        xs = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(inverse + row, mask=row < rows, other=0.0)
        normal = xs * scale
        mean = tl.sum(g * weights * normal, axis=1)[:, None] / columns
        tl.store(x_gradient + at, scale * (g * weights - normal * mean), mask=inside)
        total += g * normal
    sums = tl.sum(total, axis=0)[None, :]
    tl.store(partial + tl.program_id(0).to(tl.int64) * columns + column, sums, mask=column < columns)


@triton.autotune(WARPS, key=["columns"], reset_to_zero=["partial"])
@triton.jit
def rms_norm_backward_wide(
    x, weight, gradient, inverse, x_gradient, partial, rows, columns, BLOCK: tl.constexpr
):
    """Compute the same by rows, BLOCK columns at once; `partial` starts at zero and collects the sums."""
    column = tl.arange(0, BLOCK)
    partial += tl.program_id(0).to(tl.int64) * columns
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.cast(row, tl.int64) * columns
        scale = tl.load(inverse + row)
        mean = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, columns, BLOCK):
            here = first + column
            xs = tl.load(x + start + here, mask=here < columns, other=0.0).to(tl.float32)
            g = tl.load(gradient + start + here, mask=here < columns, other=0.0).to(tl.float32)
            weights = tl.load(weight + here, mask=here < columns, other=0.0).to(tl.float32)
            mean += g * weights * xs * scale
        mean = tl.sum(mean, axis=0) / columns
        for first in range(0, columns, BLOCK):
            here = first + column
            xs = tl.load(x + start + here, mask=here < columns, other=0.0).to(tl.float32)
            g = tl.load(gradient + start + here, mask=here < columns, other=0.0).to(tl.float32)
            weights = tl.load(weight + here, mask=here < columns, other=0.0).to(tl.float32)
            normal = xs * scale
            tl.store(x_gradient + start + here, scale * (g * weights - normal * mean), mask=here < columns)
            sums = tl.load(partial + here, mask=here < columns, other=0.0)
            tl.store(partial + here, sums + g * normal, mask=here < columns)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        y, columns = torch.empty_like(x), x.shape[-1]
        rows, shape = x.numel() // columns, tile(columns)
        inverse = torch.empty(rows, dtype=torch.float32, device=x.device)
        grid = (triton.cdiv(rows, shape.rows),)
        launch(rms_norm_forward, grid, x, weight, y, inverse, rows, columns, EPSILON, *shape)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, inverse = ctx.saved_tensors
        x_gradient, columns = torch.empty_like(x), x.shape[-1]
        rows, shape = x.numel() // columns, tile(columns, WIDEST_WITH_SUMS)
        count = programs(triton.cdiv(rows, shape.rows), x)
        allocate = torch.empty if shape.whole else torch.zeros
        partial = allocate(count, columns, dtype=torch.float32, device=x.device)
        tensors = (x, weight, gradient.contiguous(), inverse, x_gradient, partial)
        if shape.whole:
            launch(rms_norm_backward, (count,), *tensors, rows, columns, shape.rows, shape.block)
        else:
            launch(rms_norm_backward_wide, (count,), *tensors, rows, columns, BLOCK=shape.block)
        return x_gradient, partial.sum(0).to(weight.dtype)


def rms_norm(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D), with any leading dimensions; differentiable once."""
    return _RMSNorm.apply(x_ND, weight_D)  # type: ignore[no-any-return]


def kernels(workload_dtype: str) -> list[Compilation]:
    """Return both kernels, for inputs of type fp32 | bf16 | fp16 in rows of TYPICAL_COLUMNS."""
    rows, block, whole = tile(TYPICAL_COLUMNS, WIDEST_WITH_SUMS)
    constexprs = {"ROWS": rows, "BLOCK": block, "WHOLE": whole, "STAGES": 1}
    return compilations(workload_dtype, constexprs, rms_norm_forward, rms_norm_backward)
