"""The float64 reference: outputs and gradients of an operation's eager function on the same inputs.

Attention is computed in blocks of queries, each head alone, so that long sequences fit; of many heads a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from suites.kernels.bound_call import leaves_of, make_inputs, make_upstream, mapped, tensors_of
from suites.kernels.subject import Inputs, Operation, Result
from suites.kernels.workload import Workload

HEADS_COMPARED = 2
"""Number of (batch, head) pairs that are computed above FEW_PAIRS scores: the first and the last."""

FEW_PAIRS = 2**24
"""Number of scores up to which all pairs are computed."""

QUERIES_AT_ONCE = 1024


class Reference(NamedTuple):
    """Float64's results, and for which (batch, head) pairs (None: all)."""

    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor]
    num_attention_heads: tuple[tuple[int, int], ...] | None


def in_float64(values: Inputs) -> Inputs:
    """Return float64 copies of floating-point tensors; leaves stay leaves."""
    return tuple(mapped(_wide, value) for value in values)


def _wide(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(torch.float64, copy=True).requires_grad_(tensor.requires_grad)


def evaluate(operation: Operation, inputs: Inputs, upstream: Sequence[Tensor]) -> Result:
    """Return outputs, and gradients of the leaves, of the eager function on `inputs` as they are."""
    outputs = list(tensors_of(operation.eager(*inputs)))
    leaves = leaves_of(inputs)
    if not leaves:
        return [one.detach() for one in outputs], []
    wide = [one.to(output.dtype) for one, output in zip(upstream, outputs, strict=True)]
    gradients = torch.autograd.grad(outputs, leaves, wide)
    return [one.detach() for one in outputs], gradients


def reference(operation: Operation, inputs: Inputs, upstream: Sequence[Tensor]) -> Reference:
    """Return float64's outputs and gradients; `inputs` are not changed."""
    if operation.name == "attention":
        return attention_reference(operation, inputs, upstream)
    return Reference(*evaluate(operation, in_float64(inputs), upstream), None)


@lru_cache(maxsize=1)
def reference_of(operation: Operation, workload: Workload, seed: int, device: torch.device) -> Reference:
    """Return the reference at a workload's own shape, computed once for all variants of one process."""
    inputs = make_inputs(operation, workload, seed, device)
    return reference(operation, inputs, make_upstream(operation, inputs, seed))


def attention_reference(operation: Operation, inputs: Inputs, upstream: Sequence[Tensor]) -> Reference:
    """Compute each head alone, its queries in blocks; of long sequences the first and the last head."""
    q_BHTK, k_BHTK, v_BHTK, causal = inputs
    batch, num_attention_heads, length, _ = q_BHTK.shape
    pairs = tuple((b, h) for b in range(batch) for h in range(num_attention_heads))
    if len(pairs) * length**2 > FEW_PAIRS:
        pairs = tuple(dict.fromkeys((pairs[0], pairs[-1])))[:HEADS_COMPARED]
    heads = []
    for b, h in pairs:
        g_TK = upstream[0][b, h] if upstream else None
        heads.append(one_head(q_BHTK[b, h], k_BHTK[b, h], v_BHTK[b, h], causal, g_TK))
    columns = [torch.stack(column) for column in zip(*heads, strict=True)]
    return Reference(columns[:1], columns[1:], pairs)


def one_head(
    q_TK: Tensor, k_TK: Tensor, v_TK: Tensor, causal: bool, g_TK: Tensor | None
) -> tuple[Tensor, ...]:
    """Return softmax(q k^T / sqrt(K)) v in float64, and with an upstream gradient those of q, k and v."""
    q_TK, k_TK, v_TK = (one.detach().double() for one in (q_TK, k_TK, v_TK))
    scale, length = q_TK.shape[-1] ** -0.5, q_TK.shape[0]
    out_TK, gq_TK, gk_TK, gv_TK = (torch.zeros_like(q_TK) for _ in range(4))
    for begin in range(0, length, QUERIES_AT_ONCE):
        rows = slice(begin, min(begin + QUERIES_AT_ONCE, length))
        scores = q_TK[rows] @ k_TK.T * scale
        if causal:
            ahead = torch.arange(length, device=q_TK.device) > torch.arange(
                rows.start, rows.stop, device=q_TK.device
            ).unsqueeze(1)
            scores.masked_fill_(ahead, float("-inf"))
        weights = scores.softmax(-1)
        out_TK[rows] = weights @ v_TK
        if g_TK is None:
            continue
        g = g_TK[rows].double()
        gv_TK += weights.T @ g
        g_weights = g @ v_TK.T
        g_scores = weights * (g_weights - (weights * g_weights).sum(-1, keepdim=True)) * scale
        gq_TK[rows] = g_scores @ k_TK
        gk_TK += g_scores.T @ q_TK[rows]
    return (out_TK,) if g_TK is None else (out_TK, gq_TK, gk_TK, gv_TK)
