"""Attention as it is written down: scores, mask, softmax, product."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload
from suites.training.models.model import causal_mask, explicit_attention

Inputs = tuple[Tensor, Tensor, Tensor, bool]


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Inputs:
    """Return q_BHTK, k_BHTK, v_BHTK, normal, and whether attention is causal."""
    size = (3, workload.micro_batch_size, workload.num_attention_heads, workload.seq_len, workload.head_size)
    drawn = torch.randn(size, generator=generator, device=device).to(workload.torch_dtype)
    q_BHTK, k_BHTK, v_BHTK = (one.clone().requires_grad_(workload.backward) for one in drawn)
    return q_BHTK, k_BHTK, v_BHTK, workload.causal


def eager(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, causal: bool) -> Tensor:
    """Map three tensors (B, H, T, K) to one. All scores are kept; the mask is made once per shape."""
    masked_TT = mask(q_BHTK.shape[-2], q_BHTK.device) if causal else None
    return explicit_attention(q_BHTK, k_BHTK, v_BHTK, masked_TT, 0.0)


def mask(length: int, device: torch.device) -> Tensor:
    """Return (T, T), True where a query must not look: cached between calls, but compiled with the rest."""
    if torch.compiler.is_compiling():
        return causal_mask(length, device)
    return kept_mask(length, device)


@lru_cache(maxsize=4)
def kept_mask(length: int, device: torch.device) -> Tensor:
    """Return the cached mask of recent lengths, as a model has one mask for all layers."""
    return causal_mask(length, device)


def bytes_moved(workload: Workload) -> float:
    """Forward: read q, k, v; write o. Backward: read q, k, v, o and o's gradient; write three gradients.

    No scores: flash attention's traffic (arXiv 2205.14135) where keys and values stay on the chip. One
    number a row is left out.
    """
    tensors = 4 + (8 if workload.backward else 0)
    elements = workload.rows * workload.num_attention_heads * workload.head_size
    return float(tensors * elements * workload.element_B)


def flops(workload: Workload) -> float:
    """Forward 4 B H T^2 K, backward 2.5 times that, causal half: arXiv 2307.08691, 4.1. Products alone.

    Its backward pass has five products, one of which is the scores had again.
    """
    pairs = workload.micro_batch_size * workload.num_attention_heads * workload.seq_len**2
    forward = 4.0 * pairs * workload.head_size / (2 if workload.causal else 1)
    return forward * (3.5 if workload.backward else 1)


def eager_B(workload: Workload) -> float:
    """Return the bytes of three live tensors (B, H, T, T) and the masks: 3.2 times one, by the allocator."""
    scores = workload.rows * workload.num_attention_heads * workload.seq_len * workload.element_B
    return 3.5 * scores


OPERATION = Operation("attention", inputs, eager, bytes_moved, flops, eager_B)
