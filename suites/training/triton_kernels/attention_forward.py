"""Flash attention's forward kernel, and what the backward kernels share with it.

`attention` describes the algorithm.

Suffixes: M rows (queries) and N columns (keys) of a block, K size of a head; B batch, H heads, T tokens.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

SHARED_MEMORY_B = 224 * 1024
"""Shared memory of one program on an H100 (227 KiB); configurations that need more are not tried."""

LARGEST_BLOCK = 128
"""Largest block of rows of any configuration: a length that is a multiple of it needs no masks at the end."""

KEY = ["bucket", "HEAD", "CAUSAL"]
"""Lengths are rounded up to a power of two, so that kernels are tuned once per bucket and not per length."""


def configurations(*shapes: tuple[int, int, int, int]) -> list[triton.Config]:
    """Return configurations from (BLOCK_M, BLOCK_N, num_warps, num_stages); the least shared memory last."""
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
        for m, n, warps, stages in shapes
    ]


def tuned(of: list[triton.Config]) -> Any:
    """Return the decorator that chooses among configurations `of` a kernel by timing them."""
    return triton.autotune(of, key=KEY, prune_configs_by={"early_config_prune": fitting})


def fitting(of: list[triton.Config], arguments: dict[str, Any], **constexprs: Any) -> list[triton.Config]:
    """Return the configurations whose resident and streamed blocks fit in shared memory, or the last one."""
    row_B = constexprs["HEAD"] * arguments["q"].element_size()

    def fits(one: triton.Config) -> bool:
        resident, streamed = sorted((one.kwargs["BLOCK_M"], one.kwargs["BLOCK_N"]), reverse=True)
        return bool(row_B * (resident + 2 * streamed * (one.num_stages - 1)) <= SHARED_MEMORY_B)

    return [one for one in of if fits(one)] or of[-1:]


FORWARD = configurations(
    *((64, 32, 4, 2), (64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 64, 8, 4)),
    *((128, 128, 8, 2), (128, 128, 8, 3), (32, 16, 4, 1)),
)


@triton.jit
def head_offset(stride_b, stride_h, num_attention_heads):
    """Return the offset of this program's head: axis 1 of the grid counts batch times heads."""
    head = tl.program_id(1).to(tl.int64)
    return head // num_attention_heads * stride_b + head % num_attention_heads * stride_h


@triton.jit
def load(pointers, rows, length, MASKED: tl.constexpr):
    """Load a block of rows; zeros beyond `length`."""
    if MASKED:
        return tl.load(pointers, mask=rows[:, None] < length, other=0.0)
    return tl.load(pointers)


@triton.jit
def _attend(
    acc_MK, sum_M, max_M, q_MK, k, v, rows_M, first, end, stride_t, length, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Apply online softmax over columns `first` to `end`; sums are relative to the running maximum."""
    tile_NK = tl.arange(0, BLOCK_N)[:, None] * stride_t + tl.arange(0, HEAD)[None, :]
    k += tl.cast(first, tl.int64) * stride_t
    v += tl.cast(first, tl.int64) * stride_t
    for start in range(first, end, BLOCK_N):
        columns_N = start + tl.arange(0, BLOCK_N)
        k_NK = load(k + tile_NK, columns_N, length, MASKED)
        scores_MN = tl.dot(q_MK, tl.trans(k_NK), input_precision=PRECISION)
        if MASKED:
            seen_MN = columns_N[None, :] < length
            if CAUSAL:
                seen_MN = seen_MN & (columns_N[None, :] <= rows_M[:, None])
            scores_MN = tl.where(seen_MN, scores_MN, float("-inf"))
        new_M = tl.maximum(max_M, tl.max(scores_MN, 1) * scale)
        weights_MN = tl.exp2(scores_MN * scale - new_M[:, None])
        decay_M = tl.exp2(max_M - new_M)
        sum_M = sum_M * decay_M + tl.sum(weights_MN, 1)
        v_NK = load(v + tile_NK, columns_N, length, MASKED)
        acc_MK = tl.dot(weights_MN.to(v_NK.dtype), v_NK, acc_MK * decay_M[:, None], input_precision=PRECISION)
        max_M = new_M
        k += BLOCK_N * stride_t
        v += BLOCK_N * stride_t
    return acc_MK, sum_M, max_M


@tuned(FORWARD)
@triton.jit
def forward(
    q, k, v, out, lse, stride_b, stride_h, stride_t, num_attention_heads, length, bucket, scale,
    CAUSAL: tl.constexpr, HEAD: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute one block of queries of one head over its keys. Causal: the last queries, with the most work,
    first."""
    block = tl.program_id(0)
    if CAUSAL:
        block = tl.num_programs(0) - 1 - block
    offset = head_offset(stride_b, stride_h, num_attention_heads)
    rows_M = block * BLOCK_M + tl.arange(0, BLOCK_M)
    tile_MK = tl.cast(rows_M, tl.int64)[:, None] * stride_t + tl.arange(0, HEAD)[None, :]
    q_MK = load(q + offset + tile_MK, rows_M, length, True)
    acc_MK = tl.zeros([BLOCK_M, HEAD], tl.float32)
    sum_M = tl.zeros([BLOCK_M], tl.float32)
    max_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
    end = length
    whole = length // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = tl.minimum(length, (block + 1) * BLOCK_M)
        whole = tl.minimum(whole, block * BLOCK_M // BLOCK_N * BLOCK_N)
    acc_MK, sum_M, max_M = _attend(
        acc_MK, sum_M, max_M, q_MK, k + offset, v + offset, rows_M, 0, whole, stride_t, length, scale,
        False, CAUSAL, BLOCK_N, HEAD, PRECISION,
    )  # fmt: skip
    acc_MK, sum_M, max_M = _attend(
        acc_MK, sum_M, max_M, q_MK, k + offset, v + offset, rows_M, whole, end, stride_t, length, scale,
        True, CAUSAL, BLOCK_N, HEAD, PRECISION,
    )  # fmt: skip
    out_MK = (acc_MK / sum_M[:, None]).to(out.dtype.element_ty)
    tl.store(out + offset + tile_MK, out_MK, mask=rows_M[:, None] < length)
    lse_row = tl.program_id(1).to(tl.int64) * length
    tl.store(lse + lse_row + rows_M, max_M + tl.log2(sum_M), mask=rows_M < length)
