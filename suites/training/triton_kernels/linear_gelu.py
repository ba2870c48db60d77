"""gelu(x W^T + bias) in its tanh form: the activation in the epilogue of the product's Triton kernel.

Traffic in bytes of the forward pass, for elements of s bytes: read x, the weight and the bias, and write y,
N D s + F D s + F s + N F s. With gradients the product is written too, N F s, for the backward pass to read.
A product and an activation in separate kernels move the (N, F) tensor three times in either case: the product
is written, read and written as y.

The product is stored and not computed again, which would save the writing and the reading, 2 N F s bytes, and
cost 2 N D F operations. That is D / s operations per byte, 2,048 at D = 4,096 in 16 bits: several times what
any GPU computes in the time in which it moves a byte.

Backward: `gelu_bias_backward` reads the product and y's gradient, writes the product's gradient and sums the
bias's. Two matrix products of torch follow, which read that gradient. So 5 N F s, as with separate kernels,
whose sum for the bias reads it once more.

Suffixes: N rows, D columns of x, F features of y.
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
from suites.training.triton_kernels.attention import FULL, ON_AMD, TYPES, product_precision
from suites.training.triton_kernels.attention_forward import SHARED_MEMORY_B
from suites.training.triton_kernels.gelu_bias import CUBIC, SLOPE, gelu_bias_gradients

DEEPEST_BLOCK = 64
"""Largest block of D of any configuration: a D that is a multiple of it needs no masks."""

ROWS_TOGETHER = tl.constexpr(8)
"""Blocks of rows that programs take one after another for one block of features, so that a wave of programs
reads few blocks of x and of the weight, and finds them in the L2 cache."""


def fitting(of: list[triton.Config], arguments: dict[str, Any], **constexprs: Any) -> list[triton.Config]:
    """Return the configurations whose blocks of x and the weight fit in shared memory, or the first one."""
    element_B = arguments["x"].element_size()

    def taken_B(one: triton.Config) -> int:
        blocks = one.kwargs
        return int(one.num_stages * (blocks["BLOCK_N"] + blocks["BLOCK_F"]) * blocks["BLOCK_D"] * element_B)

    return [one for one in of if taken_B(one) <= SHARED_MEMORY_B] or of[:1]


CONFIGURATIONS = [
    triton.Config({"BLOCK_N": n, "BLOCK_F": f, "BLOCK_D": d}, num_warps=warps, num_stages=stages)
    for n, f, d, warps, stages in (
        (64, 64, 32, 4, 3),
        (64, 128, 32, 4, 4),
        (128, 64, 64, 4, 3),
        (128, 128, 32, 4, 4),
        (128, 128, 64, 4, 3),
        (128, 128, 64, 8, 4),
        (128, 256, 64, 8, 3),
        (128, 256, 64, 8, 4),
        (256, 128, 64, 8, 3),
    )
]
"""Tiles that are tuned, by time. The first one is what the interpreter takes."""


@triton.autotune(
    CONFIGURATIONS, key=["columns", "features"], prune_configs_by={"early_config_prune": fitting}
)
@triton.jit
def linear_gelu_forward(
    x, weight, bias, y, product, rows, columns, features,
    KEEP: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute one tile of v = x W^T + bias and of y = v/2 (1 + tanh(u)) = v sigmoid(2 u).

    Here u = SLOPE (v + CUBIC v^3). KEEP: the product, without the bias, is stored too. WHOLE: `columns` is a
    multiple of BLOCK_D. Rows and features beyond the end are those at the beginning again, and not stored.
    """
    down, across = tl.cdiv(rows, BLOCK_N), tl.cdiv(features, BLOCK_F)
    group = tl.program_id(0) // (ROWS_TOGETHER * across)
    height = tl.minimum(down - group * ROWS_TOGETHER, ROWS_TOGETHER)
    within = tl.program_id(0) % (ROWS_TOGETHER * across)
    row = (group * ROWS_TOGETHER + within % height) * BLOCK_N + tl.arange(0, BLOCK_N)
    feature = (within // height) * BLOCK_F + tl.arange(0, BLOCK_F)
    column = tl.arange(0, BLOCK_D)
    x += (row % rows).to(tl.int64)[:, None] * columns + column[None, :]
    weight += (feature % features).to(tl.int64)[None, :] * columns + column[:, None]
    v = tl.zeros((BLOCK_N, BLOCK_F), tl.float32)
    for first in range(0, columns, BLOCK_D):
        if WHOLE:
            x_ND, weight_DF = tl.load(x), tl.load(weight)
        else:
            x_ND = tl.load(x, mask=column[None, :] < columns - first, other=0.0)
            weight_DF = tl.load(weight, mask=column[:, None] < columns - first, other=0.0)
        v = tl.dot(x_ND, weight_DF, v, input_precision=PRECISION)
        x += BLOCK_D
        weight += BLOCK_D
    inside = (row < rows)[:, None] & (feature < features)[None, :]
    at = row.to(tl.int64)[:, None] * features + feature[None, :]
    if KEEP:
        tl.store(product + at, v.to(product.dtype.element_ty), mask=inside)
    v += tl.load(bias + feature, mask=feature < features, other=0.0).to(tl.float32)[None, :]
    u = v * SLOPE * (1 + v * v * CUBIC)
    tl.store(y + at, (v * tl.sigmoid(2 * u)).to(y.dtype.element_ty), mask=inside)


class _LinearGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor, keep: bool) -> Tensor:
        """`keep`: store what the backward pass reads; within this function torch shows no gradients."""
        x_ND, weight_FD, bias_F = x_ND.contiguous(), weight_FD.contiguous(), bias_F.contiguous()
        (N, D), F = x_ND.shape, weight_FD.shape[0]
        y_NF = x_ND.new_empty(N, F)
        product_NF = torch.empty_like(y_NF) if keep else y_NF
        launch(
            linear_gelu_forward,
            lambda chosen: (triton.cdiv(N, chosen["BLOCK_N"]) * triton.cdiv(F, chosen["BLOCK_F"]),),
            x_ND, weight_FD, bias_F, y_NF, product_NF, N, D, F,
            KEEP=keep, WHOLE=D % DEEPEST_BLOCK == 0, PRECISION=product_precision(x_ND.dtype),
        )  # fmt: skip
        if keep:
            ctx.save_for_backward(x_ND, weight_FD, bias_F, product_NF)
        return y_NF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_NF: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x_ND, weight_FD, bias_F, product_NF = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        dproduct_NF, dbias_F = gelu_bias_gradients(product_NF, bias_F, dy_NF)
        return (
            dproduct_NF @ weight_FD if needs_x else None,
            dproduct_NF.T @ x_ND if needs_weight else None,
            dbias_F if needs_bias else None,
            None,
        )


def linear_gelu(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    """Map x (N, D), a weight (F, D) and a bias (F) to (N, F); differentiable once.

    Raises ValueError for shapes that do not fit, or types other than fp32, bf16, fp16 or that differ.
    """
    fits = x_ND.dim() == weight_FD.dim() == 2 and x_ND.shape[1] == weight_FD.shape[1]
    if not fits or bias_F.shape != weight_FD.shape[:1]:
        shapes = ", ".join(str(tuple(one.shape)) for one in (x_ND, weight_FD, bias_F))
        raise ValueError(f"linear_gelu takes x (N, D), a weight (F, D) and a bias (F), got {shapes}")
    types = {one.dtype for one in (x_ND, weight_FD, bias_F)}
    if len(types) > 1 or x_ND.dtype not in TYPES:
        names = ", ".join(sorted(map(str, types)))
        raise ValueError(f"linear_gelu takes tensors of one type, fp32, bf16 or fp16, got {names}")
    keep = torch.is_grad_enabled() and any(one.requires_grad for one in (x_ND, weight_FD, bias_F))
    return _LinearGELU.apply(x_ND, weight_FD, bias_F, keep)  # type: ignore[no-any-return]


def kernels(dtype: str) -> list[Compilation]:
    """Return the product's kernel with its activation, as it is trained; `dtype` as Triton names it."""
    tensors = dict.fromkeys(("x", "weight", "bias", "y", "product"), f"*{dtype}")
    signature = tensors | dict.fromkeys(("rows", "columns", "features"), "i32")
    tile, warps = ((64, 64, 32), 4) if dtype == "fp32" else ((128, 128, 64), 8)
    constexprs = dict(zip(("BLOCK_N", "BLOCK_F", "BLOCK_D"), tile, strict=True))
    every = {"KEEP": True, "WHOLE": True, "PRECISION": FULL if dtype == "fp32" else ON_AMD, **constexprs}
    return [
        Compilation(
            "linear_gelu_forward", linear_gelu_forward, signature, every, warps, {"PRECISION": ON_AMD}
        )
    ]
