"""Flash attention's backward kernels: delta, then dk and dv, then dq; `attention` describes the algorithm.

No two programs write to one place, so there are no atomics, and the gradients are the same in every run.
Suffixes: M rows (queries) and N columns (keys) of a block, K size of a head; B batch, H heads, T tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

from suites.training.triton_kernels.attention_forward import configurations, head_offset, load, tuned

DELTA_ROWS = 64
"""Rows per program of `delta_of`."""

BACKWARD_KV = configurations(
    (32, 64, 4, 2), (64, 64, 8, 2), (32, 128, 8, 3), (64, 128, 8, 2), (64, 128, 8, 3), (16, 32, 4, 1)
)
BACKWARD_Q = configurations(
    (64, 32, 4, 2), (64, 64, 8, 2), (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3), (32, 16, 4, 1)
)


@triton.jit
def delta_of(
    out, d_out, delta, stride_b, stride_h, stride_t, num_attention_heads, length,
    HEAD: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Compute delta, the sum over the head of output times gradient, which softmax's gradient subtracts."""
    rows_M = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile_MK = tl.cast(rows_M, tl.int64)[:, None] * stride_t + tl.arange(0, HEAD)[None, :]
    tile_MK += head_offset(stride_b, stride_h, num_attention_heads)
    out_MK = load(out + tile_MK, rows_M, length, True).to(tl.float32)
    d_out_MK = load(d_out + tile_MK, rows_M, length, True).to(tl.float32)
    row = tl.program_id(1).to(tl.int64) * length
    tl.store(delta + row + rows_M, tl.sum(out_MK * d_out_MK, 1), mask=rows_M < length)


@triton.jit
def _gather_kv(
    dk_NK, dv_NK, k_NK, v_NK, q, d_out, lse, delta, columns_N, first, end, stride_t, length, scale,
    MASKED: tl.constexpr, DIAGONAL: tl.constexpr, BLOCK_M: tl.constexpr, HEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the queries from `first` to `end` to dk and dv. Rows beyond the last are
    zeros."""
    tile_MK = tl.arange(0, BLOCK_M)[:, None] * stride_t + tl.arange(0, HEAD)[None, :]
    q += tl.cast(first, tl.int64) * stride_t
    d_out += tl.cast(first, tl.int64) * stride_t
    for start in range(first, end, BLOCK_M):
        rows_M = start + tl.arange(0, BLOCK_M)
        q_MK = load(q + tile_MK, rows_M, length, MASKED)
        d_out_MK = load(d_out + tile_MK, rows_M, length, MASKED)
        lse_M = tl.load(lse + rows_M, mask=rows_M < length, other=0.0)
        delta_M = tl.load(delta + rows_M, mask=rows_M < length, other=0.0)
        scores_NM = tl.dot(k_NK, tl.trans(q_MK), input_precision=PRECISION)
        weights_NM = tl.exp2(scores_NM * scale - lse_M[None, :])
        if DIAGONAL:
            weights_NM = tl.where(columns_N[:, None] <= rows_M[None, :], weights_NM, 0.0)
        dv_NK = tl.dot(weights_NM.to(d_out_MK.dtype), d_out_MK, dv_NK, input_precision=PRECISION)
        d_weights_NM = tl.dot(v_NK, tl.trans(d_out_MK), input_precision=PRECISION)
        d_scores_NM = weights_NM * (d_weights_NM - delta_M[None, :])
        dk_NK = tl.dot(d_scores_NM.to(q_MK.dtype), q_MK, dk_NK, input_precision=PRECISION)
        q += BLOCK_M * stride_t
        d_out += BLOCK_M * stride_t
    return dk_NK, dv_NK


@tuned(BACKWARD_KV)
@triton.jit
def backward_kv(
    q, k, v, d_out, lse, delta, dk, dv, stride_b, stride_h, stride_t, num_attention_heads, length, bucket,
    scale, factor,
    CAUSAL: tl.constexpr, WHOLE: tl.constexpr, HEAD: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one block of keys, over the queries that see it. WHOLE: blocks divide the rows
    evenly."""
    first_column = tl.program_id(0) * BLOCK_N
    offset = head_offset(stride_b, stride_h, num_attention_heads)
    row = tl.program_id(1).to(tl.int64) * length
    columns_N = first_column + tl.arange(0, BLOCK_N)
    tile_NK = tl.cast(columns_N, tl.int64)[:, None] * stride_t + tl.arange(0, HEAD)[None, :] + offset
    k_NK = load(k + tile_NK, columns_N, length, True)
    v_NK = load(v + tile_NK, columns_N, length, True)
    dk_NK = tl.zeros([BLOCK_N, HEAD], tl.float32)
    dv_NK = tl.zeros([BLOCK_N, HEAD], tl.float32)
    below = 0
    if CAUSAL:
        above = first_column // BLOCK_M * BLOCK_M
        below = tl.minimum(
            tl.cdiv(first_column + BLOCK_N, BLOCK_M) * BLOCK_M, tl.cdiv(length, BLOCK_M) * BLOCK_M
        )
        dk_NK, dv_NK = _gather_kv(
            dk_NK, dv_NK, k_NK, v_NK, q + offset, d_out + offset, lse + row, delta + row, columns_N,
            above, below, stride_t, length, scale, not WHOLE, True, BLOCK_M, HEAD, PRECISION,
        )  # fmt: skip
    dk_NK, dv_NK = _gather_kv(
        dk_NK, dv_NK, k_NK, v_NK, q + offset, d_out + offset, lse + row, delta + row, columns_N,
        below, length, stride_t, length, scale, not WHOLE, False, BLOCK_M, HEAD, PRECISION,
    )  # fmt: skip
    tl.store(dk + tile_NK, (dk_NK * factor).to(dk.dtype.element_ty), mask=columns_N[:, None] < length)
    tl.store(dv + tile_NK, dv_NK.to(dv.dtype.element_ty), mask=columns_N[:, None] < length)


@triton.jit
def _gather_q(
    dq_MK, q_MK, d_out_MK, lse_M, delta_M, k, v, rows_M, first, end, stride_t, length, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the keys from `first` to `end` to dq."""
    tile_NK = tl.arange(0, BLOCK_N)[:, None] * stride_t + tl.arange(0, HEAD)[None, :]
    k += tl.cast(first, tl.int64) * stride_t
    v += tl.cast(first, tl.int64) * stride_t
    for start in range(first, end, BLOCK_N):
        columns_N = start + tl.arange(0, BLOCK_N)
        k_NK = load(k + tile_NK, columns_N, length, MASKED)
        v_NK = load(v + tile_NK, columns_N, length, MASKED)
        scores_MN = tl.dot(q_MK, tl.trans(k_NK), input_precision=PRECISION)
        weights_MN = tl.exp2(scores_MN * scale - lse_M[:, None])
        if MASKED:
            seen_MN = columns_N[None, :] < length
            if CAUSAL:
                seen_MN = seen_MN & (columns_N[None, :] <= rows_M[:, None])
            weights_MN = tl.where(seen_MN, weights_MN, 0.0)
        d_weights_MN = tl.dot(d_out_MK, tl.trans(v_NK), input_precision=PRECISION)
        d_scores_MN = weights_MN * (d_weights_MN - delta_M[:, None])
        dq_MK = tl.dot(d_scores_MN.to(k_NK.dtype), k_NK, dq_MK, input_precision=PRECISION)
        k += BLOCK_N * stride_t
        v += BLOCK_N * stride_t
    return dq_MK


@tuned(BACKWARD_Q)
@triton.jit
def backward_q(
    q, k, v, d_out, lse, delta, dq, stride_b, stride_h, stride_t, num_attention_heads, length, bucket,
    scale, factor,
    CAUSAL: tl.constexpr, HEAD: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute dq of one block of queries, over the keys that it sees."""
    block = tl.program_id(0)
    if CAUSAL:
        block = tl.num_programs(0) - 1 - block
    offset = head_offset(stride_b, stride_h, num_attention_heads)
    row = tl.program_id(1).to(tl.int64) * length
    rows_M = block * BLOCK_M + tl.arange(0, BLOCK_M)
    tile_MK = tl.cast(rows_M, tl.int64)[:, None] * stride_t + tl.arange(0, HEAD)[None, :] + offset
    q_MK = load(q + tile_MK, rows_M, length, True)
    d_out_MK = load(d_out + tile_MK, rows_M, length, True)
    lse_M = tl.load(lse + row + rows_M, mask=rows_M < length, other=0.0)
    delta_M = tl.load(delta + row + rows_M, mask=rows_M < length, other=0.0)
    end = length
    whole = length // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = tl.minimum(length, (block + 1) * BLOCK_M)
        whole = tl.minimum(whole, block * BLOCK_M // BLOCK_N * BLOCK_N)
    dq_MK = tl.zeros([BLOCK_M, HEAD], tl.float32)
    dq_MK = _gather_q(
        dq_MK, q_MK, d_out_MK, lse_M, delta_M, k + offset, v + offset, rows_M,
        0, whole, stride_t, length, scale, False, CAUSAL, BLOCK_N, HEAD, PRECISION,
    )  # fmt: skip
    dq_MK = _gather_q(
        dq_MK, q_MK, d_out_MK, lse_M, delta_M, k + offset, v + offset, rows_M,
        whole, end, stride_t, length, scale, True, CAUSAL, BLOCK_N, HEAD, PRECISION,
    )  # fmt: skip
    tl.store(dq + tile_MK, (dq_MK * factor).to(dq.dtype.element_ty), mask=rows_M[:, None] < length)
