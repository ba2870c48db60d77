"""Attention that never stores the scores: FlashAttention-2 (arXiv 2307.08691), forward and backward.

Least traffic, in bytes, where S = B H T K times the bytes of an element, and a head's keys and values stay in
the cache between the programs that read them:
  forward: read q, k, v, write the output, 4 S; write one number per query, 4 B H T.
  backward: read q, k, v, the output and its gradient, write three gradients, 8 S. As built 13 S: delta has
  its own pass (reads 2 S); dk with dv, and dq, read q, k, v and the gradient each (8 S), and write 3 S.
Kept for the backward pass: q, k, v, the output, and each query's log-sum-exp, 4 B H T bytes; that in base 2,
since scores are multiplied by log2(e) once and exp2 does the rest. Scores live on the chip, by blocks.

Sums and softmax are in fp32. 16-bit inputs are multiplied as they are. fp32 inputs are multiplied in TF32
where torch may (torch.get_float32_matmul_precision() is not "highest"), as the baseline's are; otherwise, on
NVIDIA, whose matrix cores have no fp32, three TF32 products replace one of fp32 ("tf32x3"). AMD's cores
multiply fp32 in full ("ieee"), and so does the interpreter.
Causal: blocks beyond the diagonal are skipped, and only those on it are masked, or at the end.

Suffixes: B batch, H heads, T tokens, K size of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from harness.instruments.triton_kernels.launch import launch
from harness.instruments.triton_kernels.targets import Compilation
from suites.training.triton_kernels.attention_backward import DELTA_ROWS, backward_kv, backward_q, delta_of
from suites.training.triton_kernels.attention_forward import LARGEST_BLOCK, forward

HEAD_SIZES = (16, 32, 64, 128, 256)
TYPES = (torch.float32, torch.bfloat16, torch.float16)
FULL, ON_AMD = "tf32x3", "ieee"


def product_precision(dtype: torch.dtype) -> str:
    """Return how Triton multiplies `dtype`; it has no effect for 16-bit inputs."""
    if dtype != torch.float32 or torch.version.hip is not None:
        return ON_AMD
    return FULL if torch.get_float32_matmul_precision() == "highest" else "tf32"


class _Attention(torch.autograd.Function):
    """The autograd function. Every tensor has q's layout, so that one set of strides serves all."""

    @staticmethod
    def forward(ctx: Any, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, causal: bool) -> Tensor:
        q_BHTK = _dense(q_BHTK)
        k_BHTK, v_BHTK = _lying_as(q_BHTK, k_BHTK), _lying_as(q_BHTK, v_BHTK)
        out_BHTK = torch.empty_like(q_BHTK)
        lse_BHT = torch.empty(q_BHTK.shape[:-1], dtype=torch.float32, device=q_BHTK.device)
        arguments, options = _common(q_BHTK, causal)
        tensors = (q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT)
        launch(forward, _blocks_of("BLOCK_M", q_BHTK), *tensors, *arguments, **options)
        ctx.save_for_backward(q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT)
        ctx.causal = causal
        return out_BHTK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_BHTK: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT = ctx.saved_tensors
        d_out_BHTK = _lying_as(q_BHTK, d_out_BHTK)
        delta_BHT = torch.empty_like(lse_BHT)
        dq_BHTK, dk_BHTK, dv_BHTK = (torch.empty_like(q_BHTK) for _ in range(3))
        arguments, options = _common(q_BHTK, ctx.causal)
        B, H, T, K = q_BHTK.shape
        launch(
            delta_of, (triton.cdiv(T, DELTA_ROWS), B * H), out_BHTK, d_out_BHTK, delta_BHT, *arguments[:5],
            HEAD=K, BLOCK_M=DELTA_ROWS,
        )  # fmt: skip
        read = (q_BHTK, k_BHTK, v_BHTK, d_out_BHTK, lse_BHT, delta_BHT)
        factor = 1 / math.sqrt(K)
        launch(
            backward_kv, _blocks_of("BLOCK_N", q_BHTK), *read, dk_BHTK, dv_BHTK, *arguments, factor,
            WHOLE=T % LARGEST_BLOCK == 0, **options,
        )  # fmt: skip
        launch(backward_q, _blocks_of("BLOCK_M", q_BHTK), *read, dq_BHTK, *arguments, factor, **options)
        return dq_BHTK, dk_BHTK, dv_BHTK, None


def _common(q_BHTK: Tensor, causal: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the kernels' arguments after tensors: strides, heads, length, bucket, scale; and constexprs."""
    _, H, T, K = q_BHTK.shape
    arguments = (*q_BHTK.stride()[:3], H, T, triton.next_power_of_2(T), math.log2(math.e) / math.sqrt(K))
    return arguments, {"CAUSAL": causal, "HEAD": K, "PRECISION": product_precision(q_BHTK.dtype)}


def _blocks_of(size: str, q_BHTK: Tensor) -> Any:
    """Return the grid as a function of the tuned constexprs: blocks of `size` rows, times every head."""
    B, H, T, _ = q_BHTK.shape
    return lambda chosen: (triton.cdiv(T, chosen[size]), B * H)


def _dense(x_BHTK: Tensor) -> Tensor:
    """Return `x_BHTK` or a dense copy, so that a new tensor like it has the same layout."""
    alike = torch.empty_like(x_BHTK, device="meta").stride() == x_BHTK.stride()
    return x_BHTK if alike and x_BHTK.stride(-1) == 1 else x_BHTK.clone(memory_format=torch.contiguous_format)


def _lying_as(q_BHTK: Tensor, x_BHTK: Tensor) -> Tensor:
    """Return `x_BHTK`, or a copy of it with q's strides."""
    return x_BHTK if x_BHTK.stride() == q_BHTK.stride() else torch.empty_like(q_BHTK).copy_(x_BHTK)


def attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, causal: bool) -> Tensor:
    """Return softmax(q k^T / sqrt(K)) v, (B, H, T, K) each, differentiable once.

    Any length; q, k and v of one shape and type. Inputs with another layout than q's are copied.
    Raises ValueError for another head size than HEAD_SIZES, another type than TYPES, or shapes that differ.
    """
    if not (q_BHTK.shape == k_BHTK.shape == v_BHTK.shape) or q_BHTK.dim() != 4:
        shapes = ", ".join(str(tuple(one.shape)) for one in (q_BHTK, k_BHTK, v_BHTK))
        raise ValueError(f"attention takes q, k and v of one shape (B, H, T, K), got {shapes}")
    if not (q_BHTK.dtype == k_BHTK.dtype == v_BHTK.dtype) or q_BHTK.dtype not in TYPES:
        types = ", ".join(str(one.dtype) for one in (q_BHTK, k_BHTK, v_BHTK))
        raise ValueError(f"attention takes q, k and v of one type of fp32, bf16, fp16, got {types}")
    if q_BHTK.shape[-1] not in HEAD_SIZES:
        raise ValueError(f"head size {q_BHTK.shape[-1]} is not one of {', '.join(map(str, HEAD_SIZES))}")
    return _Attention.apply(q_BHTK, k_BHTK, v_BHTK, causal)  # type: ignore[no-any-return]


def kernels(dtype: str) -> list[Compilation]:
    """Return the four kernels, causal, at head size 128, in one configuration each; `dtype` as in Triton."""
    tensors = dict.fromkeys(("q", "k", "v", "out", "d_out", "dq", "dk", "dv"), f"*{dtype}")
    integers = dict.fromkeys(
        ["stride_b", "stride_h", "stride_t", "num_attention_heads", "length", "bucket"], "i32"
    )
    numbers = {"lse": "*fp32", "delta": "*fp32", "scale": "fp32", "factor": "fp32"}
    types = tensors | integers | numbers
    every = {"CAUSAL": True, "WHOLE": True, "HEAD": 128, "PRECISION": FULL if dtype == "fp32" else ON_AMD}
    of_q, of_kv, warps = ((64, 32), (32, 64), 4) if dtype == "fp32" else ((128, 64), (32, 128), 8)
    chosen = (
        ("attention_forward", forward, of_q, warps),
        ("attention_delta", delta_of, (DELTA_ROWS, 1), 4),
        ("attention_backward_kv", backward_kv, of_kv, warps),
        ("attention_backward_q", backward_q, of_q, warps),
    )
    compilations = []
    for name, function, (block_m, block_n), count in chosen:
        values = every | {"BLOCK_M": block_m, "BLOCK_N": block_n}
        signature = {one: types[one] for one in function.arg_names if one in types}
        constexprs = {one: values[one] for one in function.arg_names if one in values}
        on_amd = {"PRECISION": ON_AMD} if "PRECISION" in constexprs else {}
        compilations.append(Compilation(name, function, signature, constexprs, count, on_amd))
    return compilations
