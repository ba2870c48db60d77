"""Rotary position embedding in the halves form of Llama's public weights (arXiv 2104.09864), in Triton.

Traffic in bytes per element of size s: forward 2 s (read x, write y); backward 2 s (read the gradient of y,
write that of x). The tables are read once for several heads. Heads may come before or after tokens in memory:
the kernel uses strides, and the result has the input's layout.
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
from suites.training.triton_kernels.tiles import WARPS

HEADS = 8  # heads of a program, one after the other, with the tables in registers
TILE_PAIRS = 1024  # pairs rotated at once: 8 per thread at 4 warps, one wide load of bf16


@triton.autotune(WARPS, key=["tokens", "half"])
@triton.jit
def rotary_turn(
    x, y, cos, sin, num_attention_heads, tokens, half,
    x_batch, x_head, x_token, y_batch, y_head, y_token,
    BACK: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotate, with (a, b) the halves: y = (a cos_a - b sin_a, b cos_b + a sin_b).

    BACK, its transpose: (a cos_a + b sin_b, b cos_b - a sin_a). A program rotates TOKENS tokens of HEADS
    heads.
    """
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    inside = (token < tokens) & (pair < half)
    table = token * 2 * half + pair
    cos_a = tl.load(cos + table, mask=inside, other=0.0).to(tl.float32)
    cos_b = tl.load(cos + table + half, mask=inside, other=0.0).to(tl.float32)
    sin_a = tl.load(sin + table, mask=inside, other=0.0).to(tl.float32)
    sin_b = tl.load(sin + table + half, mask=inside, other=0.0).to(tl.float32)
    if BACK:
        sin_a, sin_b = -sin_b, -sin_a
    batch = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * HEADS
    x += batch * x_batch + first * x_head + token.to(tl.int64) * x_token + pair
    y += batch * y_batch + first * y_head + token.to(tl.int64) * y_token + pair
    for head in range(0, tl.minimum(HEADS, num_attention_heads - first)):
        a = tl.load(x + head * x_head, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(x + head * x_head + half, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + head * y_head, a * cos_a - b * sin_a, mask=inside)
        tl.store(y + head * y_head + half, b * cos_b + a * sin_b, mask=inside)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    if x.stride(-1) != 1:
        x = x.contiguous()
    y = torch.empty_like(x)
    batch, num_attention_heads, tokens, size = x.shape
    block = triton.next_power_of_2(size // 2)
    together = max(1, TILE_PAIRS // block)
    grid = (triton.cdiv(tokens, together), triton.cdiv(num_attention_heads, HEADS), batch)
    sizes = (num_attention_heads, tokens, size // 2, *x.stride()[:3], *y.stride()[:3])
    launch(rotary_turn, grid, x, y, cos, sin, *sizes, back, HEADS, together, block)
    return y


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(gradient, cos, sin, back=True), None, None


def rotary(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Map (B, H, T, K) to (B, H, T, K), K even; differentiable once, and not in the tables."""
    return _Rotary.apply(x_BHTK, cos_TK, sin_TK)  # type: ignore[no-any-return]


def kernels(workload_dtype: str) -> list[Compilation]:
    """Return the kernel in both directions, for inputs of type fp32 | bf16 | fp16 and heads of 128."""
    data = dict.fromkeys(("x", "y", "cos", "sin"), f"*{workload_dtype}")
    tile = {"HEADS": HEADS, "TOKENS": TILE_PAIRS // 64, "BLOCK": 64}
    sizes = [one for one in rotary_turn.arg_names if one not in {"BACK", *data, *tile}]
    signature = {**data, **dict.fromkeys(sizes, "i32")}
    return [
        Compilation("rotary_forward", rotary_turn, signature, {"BACK": False, **tile}, 4),
        Compilation("rotary_backward", rotary_turn, signature, {"BACK": True, **tile}, 4),
    ]
