"""Operations with products of matrices: one product, linear layers, attention; and the rotary embedding.

Suffix in addition to those of `subject`: F features of a linear layer, which are its intermediate size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.kernels.operations.rowwise import GELU_FLOPS, Tensors, leaves
from suites.kernels.subject import IN_PRODUCT, Operation
from suites.kernels.workload import Workload
from suites.training.models.model import (
    causal_mask,
    explicit_attention,
    linear_cross_entropy,
    rotary,
    rotary_tables,
)


def matmul_inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
    """Return a of (rows, hidden_size) and b of (hidden_size, intermediate_size), normal."""
    a = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    b = torch.randn(workload.hidden_size, workload.intermediate_size, generator=generator, device=device)
    return leaves(workload, a, b)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Map (rows, hidden_size) and (hidden_size, intermediate_size) to (rows, intermediate_size)."""
    return a @ b


def matmul_bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read a and b, write c. Backward: read a, b and c's gradient, write two
    gradients."""
    a, b = workload.rows * workload.hidden_size, workload.hidden_size * workload.intermediate_size
    c = workload.rows * workload.intermediate_size
    elements = a + b + c + (2 * (a + b) + c if workload.backward else 0)
    return float(elements * workload.element_B)


def matmul_flops(workload: Workload) -> float:
    """Return FLOPs: 2 m k n forward, twice that backward."""
    product = 2.0 * workload.rows * workload.hidden_size * workload.intermediate_size
    return product * (3 if workload.backward else 1)


MATMUL = Operation("matmul", matmul_inputs, matmul, matmul_bytes_moved, matmul_flops)
"""One matrix product: the arithmetic rate of this host."""


def linear_gelu_inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
    """Return x_ND normal, weight_FD of deviation 1/sqrt(D), so that products are about 1, and bias_F."""
    rows, columns, features = workload.rows, workload.hidden_size, workload.intermediate_size
    x_ND = torch.randn(rows, columns, generator=generator, device=device)
    weight_FD = torch.randn(features, columns, generator=generator, device=device) / columns**0.5
    bias_F = torch.randn(features, generator=generator, device=device)
    return leaves(workload, x_ND, weight_FD, bias_F)


def linear_gelu(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    """Map (N, D), (F, D) and (F) to (N, F): a kernel for the product with its bias, another for the rest."""
    return F.gelu(F.linear(x_ND, weight_FD, bias_F), approximate="tanh")


def linear_gelu_bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read x, weight and bias, write y. Backward: read them and the
    gradient, write three gradients. The product itself never moves: the backward pass has it again."""
    y = workload.rows * workload.intermediate_size
    passes = 1 + (2 if workload.backward else 0)
    elements = passes * _elements_read(workload) + y * (2 if workload.backward else 1)
    return float(elements * workload.element_B)


def linear_gelu_flops(workload: Workload) -> float:
    """Return FLOPs: 2 N D F forward and twice that backward, and those of `gelu_bias` on (N, F).

    Having the product again is not counted.
    """
    product = 2.0 * workload.rows * workload.hidden_size * workload.intermediate_size
    forward, backward = GELU_FLOPS
    activation = (forward + (backward if workload.backward else 0)) * workload.rows
    return product * (3 if workload.backward else 1) + activation * workload.intermediate_size


def forward_traffic(workload: Workload, activation: str) -> float:
    """Return the bytes that the forward pass's kernels read and write, each of them each tensor once.

    `activation`: the kernel that computes it, as in `Subject.activation`. All read x, weight and bias, and
    write y. In a separate kernel: the product is written and read. In the product's: it is written where a
    backward pass will read it. The backward pass is alike in both cases.
    """
    moved = (2 if workload.backward else 1) if activation == IN_PRODUCT else 3
    elements = _elements_read(workload) + moved * workload.rows * workload.intermediate_size
    return float(elements * workload.element_B)


def _elements_read(workload: Workload) -> int:
    """Return the elements of x, the weight and the bias."""
    rows, columns, features = workload.rows, workload.hidden_size, workload.intermediate_size
    return rows * columns + features * columns + features


LINEAR_GELU = Operation(
    "linear_gelu", linear_gelu_inputs, linear_gelu, linear_gelu_bytes_moved, linear_gelu_flops
)
"""A linear layer and its activation, gelu(x W^T + bias), tanh form: the up-projection of GPT's MLP."""


INDEX_B = 8


def linear_cross_entropy_inputs(
    workload: Workload, generator: torch.Generator, device: torch.device
) -> Tensors:
    """Return x_ND normal, weight_VD of deviation 1/sqrt(D), so that logits are about 1, and targets_N."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    weight_VD = torch.randn(workload.vocab_size, workload.hidden_size, generator=generator, device=device)
    weight_VD /= workload.hidden_size**0.5
    targets_N = torch.randint(workload.vocab_size, (workload.rows,), generator=generator, device=device)
    return (*leaves(workload, x_ND, weight_VD), targets_N)


def linear_cross_entropy_bytes_moved(workload: Workload) -> float:
    """Forward: read x, weight and targets. Backward: read them again, write both gradients. No logits."""
    passes = 1 + (2 if workload.backward else 0)
    matrices = (workload.rows + workload.vocab_size) * workload.hidden_size * workload.element_B
    return float(passes * matrices + workload.rows * INDEX_B * (2 if workload.backward else 1))


def linear_cross_entropy_flops(workload: Workload) -> float:
    """Forward: 2 N D V, and per logit maximum, subtract, exponential, sum. Backward: 4 N D V and 2 a logit.

    Those two: the probability less the target, over N. Having the logits again is not counted.
    """
    logits = float(workload.rows * workload.vocab_size)
    return logits * (
        2 * workload.hidden_size + 4 + (4 * workload.hidden_size + 2 if workload.backward else 0)
    )


LINEAR_CROSS_ENTROPY = Operation(
    "linear_cross_entropy",
    linear_cross_entropy_inputs,
    linear_cross_entropy,
    linear_cross_entropy_bytes_moved,
    linear_cross_entropy_flops,
)
"""The output layer with its loss: mean cross-entropy of x W^T, over the full vocabulary."""


def attention_inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> tuple[Any, ...]:
    """Return q_BHTK, k_BHTK, v_BHTK, normal, and whether attention is causal."""
    size = (3, workload.micro_batch_size, workload.num_attention_heads, workload.seq_len, workload.head_size)
    drawn = torch.randn(size, generator=generator, device=device).to(workload.torch_dtype)
    q_BHTK, k_BHTK, v_BHTK = (one.clone().requires_grad_(workload.backward) for one in drawn)
    return q_BHTK, k_BHTK, v_BHTK, workload.causal


def attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, causal: bool) -> Tensor:
    """Map three tensors (B, H, T, K) to one. All scores are kept; the mask is made once per shape."""
    masked_TT = mask(q_BHTK.shape[-2], q_BHTK.device) if causal else None
    return explicit_attention(q_BHTK, k_BHTK, v_BHTK, masked_TT, 0.0)


def fused_attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, causal: bool) -> Tensor:
    """Map three tensors (B, H, T, K) to (B, H, T, K) by torch's fused kernel, without scores."""
    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=causal)


def mask(length: int, device: torch.device) -> Tensor:
    """Return (T, T), True where a query must not look: cached between calls, but compiled with the rest."""
    if torch.compiler.is_compiling():
        return causal_mask(length, device)
    return kept_mask(length, device)


@lru_cache(maxsize=4)
def kept_mask(length: int, device: torch.device) -> Tensor:
    """Return the cached mask of recent lengths, as a model has one mask for all layers."""
    return causal_mask(length, device)


def attention_bytes_moved(workload: Workload) -> float:
    """Forward: read q, k, v; write o. Backward: read q, k, v, o and o's gradient; write three gradients.

    No scores: flash attention's traffic (arXiv 2205.14135) where keys and values stay on the chip. One
    number a row is left out.
    """
    tensors = 4 + (8 if workload.backward else 0)
    elements = workload.rows * workload.num_attention_heads * workload.head_size
    return float(tensors * elements * workload.element_B)


def attention_flops(workload: Workload) -> float:
    """Forward 4 B H T^2 K, backward 2.5 times that, causal half: arXiv 2307.08691, 4.1. Products alone.

    Its backward pass has five products, one of which is the scores had again.
    """
    pairs = workload.micro_batch_size * workload.num_attention_heads * workload.seq_len**2
    forward = 4.0 * pairs * workload.head_size / (2 if workload.causal else 1)
    return forward * (3.5 if workload.backward else 1)


def attention_eager_B(workload: Workload) -> float:
    """Return the bytes of three live tensors (B, H, T, T) and the masks: 3.2 times one, by the allocator."""
    scores = workload.rows * workload.num_attention_heads * workload.seq_len * workload.element_B
    return 3.5 * scores


ATTENTION = Operation(
    "attention", attention_inputs, attention, attention_bytes_moved, attention_flops, attention_eager_B
)
"""Attention as it is written down: scores, mask, softmax, product."""


def rotary_inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
    """Return x_BHTK normal, and cos_TK and sin_TK of the model's angles, which need no gradient."""
    size = (workload.micro_batch_size, workload.num_attention_heads, workload.seq_len, workload.head_size)
    x_BHTK = torch.randn(size, generator=generator, device=device).to(workload.torch_dtype)
    cos_TK, sin_TK = rotary_tables(workload.seq_len, workload.head_size)
    return (
        x_BHTK.requires_grad_(workload.backward),
        cos_TK.to(device, workload.torch_dtype),
        sin_TK.to(device, workload.torch_dtype),
    )


def rotary_elements(workload: Workload) -> int:
    """Return the number of elements of x."""
    return workload.rows * workload.num_attention_heads * workload.head_size


def rotary_bytes_moved(workload: Workload) -> float:
    """Forward: read x and both tables, write y. Backward: read the gradient and the tables, write x's."""
    passes = 2 if workload.backward else 1
    tables = 2 * workload.seq_len * workload.head_size
    return float(passes * (2 * rotary_elements(workload) + tables) * workload.element_B)


def rotary_flops(workload: Workload) -> float:
    """Return FLOPs: per element and pass two products and a sum; the backward pass rotates back."""
    return 3.0 * rotary_elements(workload) * (2 if workload.backward else 1)


ROTARY = Operation("rotary", rotary_inputs, rotary, rotary_bytes_moved, rotary_flops)
"""Rotary position embedding (arXiv 2104.09864), in the halves form of suites/training/models/model.py."""
