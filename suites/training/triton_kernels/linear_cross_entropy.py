"""Linear layer and mean cross-entropy by chunks of rows, never all logits at once (Liger: arXiv 2410.10989).

For each chunk of C rows: its logits by a matrix product, then one Triton kernel that takes each row's loss
and replaces the logits by their gradient, then two matrix products that give the rows of dX and add to dW, in
fp32. So gradients are computed in the forward pass; the backward pass scales them.
Least traffic, in bytes, for elements of s bytes, N rows, D columns, V words:
  forward: read x, the weight and the targets, (N + V) D s + 8 N; the gradients' too, (N + V) D s.
  as built, in addition: logits are written, read twice, written and read twice, 6 N V s; the weight is read
  twice per chunk, 2 V D s, and dW read and written, 8 V D (16-bit: its summand too, 2 V D s).
Kept: until the backward pass dX, N D s, and dW in fp32, 4 V D; temporarily C V s of logits, where C V is
about N D, so that a chunk's logits take as much as x; 16-bit: V D s for a chunk's summand.

Suffixes: N rows (C of a chunk), D columns, V vocabulary.
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

TYPES = (torch.float32, torch.bfloat16, torch.float16)

WIDEST_BLOCK = 8192
"""Vocabulary entries of a row that a program takes at once."""

WARPS = 16
"""Warps per program, 16 elements per thread. Not tuned: the kernel works in place, and tuning would run it
twice."""


@triton.jit
def _loss_and_gradient(
    logits, targets, losses, stride, vocabulary, GRADIENT: tl.constexpr, BLOCK_V: tl.constexpr
):
    """Compute one row's loss, log sum exp(logits) - logit of the target.

    Then replace logits by softmax - one-hot. A target outside the vocabulary reads nothing and has a loss of
    NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    is_word = (target >= 0) & (target < vocabulary)
    of_target = tl.load(logits + target, mask=is_word, other=float("nan")).to(tl.float32)
    maximum = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for start in range(0, vocabulary, BLOCK_V):
        words_V = start + tl.arange(0, BLOCK_V)
        logits_V = tl.load(logits + words_V, mask=words_V < vocabulary, other=float("-inf")).to(tl.float32)
        new = tl.maximum(maximum, tl.max(logits_V, 0))
        total = total * tl.exp(maximum - new) + tl.sum(tl.exp(logits_V - new), 0)
        maximum = new
    lse = maximum + tl.log(total)
    tl.store(losses + row, lse - of_target)
    if GRADIENT:
        for start in range(0, vocabulary, BLOCK_V):
            words_V = start + tl.arange(0, BLOCK_V)
            inside_V = words_V < vocabulary
            logits_V = tl.load(logits + words_V, mask=inside_V, other=float("-inf")).to(tl.float32)
            gradient_V = tl.exp(logits_V - lse) - tl.where(words_V == target, 1.0, 0.0)
            tl.store(logits + words_V, gradient_V.to(logits.dtype.element_ty), mask=inside_V)


def chunk_rows(rows: int, columns: int, vocabulary: int) -> int:
    """Return the rows of a chunk (C), a power of two: logits take about as much as x, C V <= 2 (N D + V)."""
    return int(triton.next_power_of_2(max(1, -(-rows // -(-vocabulary // columns)))))


class _LinearCrossEntropy(torch.autograd.Function):
    """The autograd function, whose forward pass computes gradients of the summed losses.

    The backward pass scales them.
    """

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        (N, D), V = x_ND.shape, weight_VD.shape[0]
        needs_x, needs_weight, _ = ctx.needs_input_grad
        dx_ND = torch.empty_like(x_ND) if needs_x else None
        dweight_VD = torch.zeros(V, D, dtype=torch.float32, device=x_ND.device) if needs_weight else None
        losses_N = torch.empty(N, dtype=torch.float32, device=x_ND.device)
        C = min(N, chunk_rows(N, D, V)) or 1
        buffer_CV = x_ND.new_empty(C, V)
        for first in range(0, N, C):
            chunk = slice(first, min(first + C, N))
            logits_CV = torch.mm(x_ND[chunk], weight_VD.T, out=buffer_CV[: chunk.stop - first])
            launch(
                _loss_and_gradient, (len(logits_CV),), logits_CV, targets_N[chunk], losses_N[chunk], V, V,
                GRADIENT=needs_x or needs_weight, BLOCK_V=_block(V), num_warps=WARPS,
            )  # fmt: skip
            if dx_ND is not None:
                torch.mm(logits_CV, weight_VD, out=dx_ND[chunk])
            if dweight_VD is not None:
                _add_product(dweight_VD, logits_CV, x_ND[chunk])
        ctx.gradients = dx_ND, dweight_VD
        ctx.rows, ctx.weight_dtype = N, weight_VD.dtype
        return losses_N.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Return new tensors, not scaled in place: a retained graph may be traversed again."""
        dx_ND, dweight_VD = ctx.gradients
        factor = d_loss / ctx.rows
        if dweight_VD is not None:
            out_VD = torch.empty_like(dweight_VD, dtype=ctx.weight_dtype)
            dweight_VD = torch.mul(dweight_VD, factor, out=out_VD)
        return None if dx_ND is None else dx_ND * factor, dweight_VD, None


def _add_product(dweight_VD: Tensor, dlogits_CV: Tensor, x_CD: Tensor) -> None:
    """Compute dweight += dlogits^T x, summed in fp32; 16-bit products are summed by chunk, then rounded."""
    if x_CD.dtype == torch.float32:
        dweight_VD.addmm_(dlogits_CV.T, x_CD)
    else:
        dweight_VD += dlogits_CV.T @ x_CD


def _block(vocabulary: int) -> int:
    return min(WIDEST_BLOCK, int(triton.next_power_of_2(vocabulary)))


def linear_cross_entropy(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return the mean over N of the cross-entropy of x W^T with int64 targets, in fp32; differentiable once.

    A target outside the vocabulary makes the loss NaN; no index is ignored.
    Raises ValueError for shapes that do not fit, or types other than TYPES or that differ.
    """
    if x_ND.dim() != 2 or weight_VD.dim() != 2 or x_ND.shape[1] != weight_VD.shape[1]:
        shapes = f"{tuple(x_ND.shape)} and {tuple(weight_VD.shape)}"
        raise ValueError(f"linear_cross_entropy takes x (N, D) and a weight (V, D), got {shapes}")
    if x_ND.dtype != weight_VD.dtype or x_ND.dtype not in TYPES:
        types = f"{x_ND.dtype} and {weight_VD.dtype}"
        raise ValueError(
            f"linear_cross_entropy takes x and weight of one type, fp32, bf16 or fp16, got {types}"
        )
    if targets_N.shape != x_ND.shape[:1] or targets_N.dtype != torch.int64:
        given = f"{tuple(targets_N.shape)} of {targets_N.dtype}"
        raise ValueError(f"linear_cross_entropy takes ({x_ND.shape[0]},) targets of int64, got {given}")
    return _LinearCrossEntropy.apply(x_ND, weight_VD, targets_N.contiguous())  # type: ignore[no-any-return]


def kernels(dtype: str) -> list[Compilation]:
    """Return the only kernel, with gradients; `dtype` as Triton names it."""
    signature = {"logits": f"*{dtype}", "targets": "*i64", "losses": "*fp32"}
    signature |= {"stride": "i32", "vocabulary": "i32"}
    constexprs = {"GRADIENT": True, "BLOCK_V": WIDEST_BLOCK}
    return [Compilation("linear_cross_entropy", _loss_and_gradient, signature, constexprs, WARPS)]
