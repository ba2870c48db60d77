"""Every operation of the suite: on rows (N, D), with products of matrices, attention, and AdamW's update.

Suffix in addition to those of `subject`: F features of a linear layer, which are its intermediate size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.kernels import adamw
from suites.kernels.subject import IN_PRODUCT, Operation
from suites.kernels.workload import Workload
from suites.training.models.model import (
    causal_mask,
    explicit_attention,
    linear_cross_entropy,
    rotary,
    rotary_tables,
)

Tensors = tuple[Tensor, ...]

SIZES = {"N": "rows", "D": "hidden_size", "F": "intermediate_size", "V": "vocab_size"}

UNIT, BY_COLUMNS = (0.0, 1.0), (0.0, None)
"""Mean and deviation of inputs; None: 1/sqrt(columns), so that products are about 1."""


def leaves(workload: Workload, *tensors: Tensor) -> Tensors:
    """Return tensors in the workload's type, to be differentiated where it has a backward pass."""
    return tuple(one.to(workload.torch_dtype).requires_grad_(workload.backward) for one in tensors)


def normal(
    *shapes: str, about: Sequence[tuple[float, float | None]] = ()
) -> Callable[[Workload, torch.Generator, torch.device], Tensors]:
    """Return what draws normal inputs of such shapes, as "ND", each with its mean and deviation `about`."""

    def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
        tensors = []
        for shape, (mean, deviation) in zip(shapes, about or [UNIT] * len(shapes), strict=True):
            size = [getattr(workload, SIZES[letter]) for letter in shape]
            drawn = torch.randn(size, generator=generator, device=device)
            tensors.append(drawn.mul_(size[-1] ** -0.5 if deviation is None else deviation).add_(mean))
        return leaves(workload, *tensors)

    return inputs


def passes(workload: Workload, forward: float, backward: float) -> float:
    """Return what both passes have, or the forward pass alone."""
    return forward + (backward if workload.backward else 0)


def traffic(
    forward: int, backward: int = 0, vectors: tuple[int, int] = (0, 0)
) -> Callable[[Workload], float]:
    """Return the least bytes by workload: tensors (N, D) that each pass reads and writes, and vectors (D)."""

    def bytes_moved(workload: Workload) -> float:
        rows = workload.rows * passes(workload, forward, backward) + passes(workload, *vectors)
        return float(rows * workload.hidden_size * workload.element_B)

    return bytes_moved


def per_element(forward: int, backward: int = 0) -> Callable[[Workload], float]:
    """Return FLOPs by workload: of an element of (N, D) in each pass."""
    return lambda workload: float(passes(workload, forward, backward) * workload.elements)


def softmax(x_ND: Tensor) -> Tensor:
    """Map (N, D) to (N, D)."""
    return torch.softmax(x_ND, dim=-1)


SOFTMAX = Operation("softmax", normal("ND"), softmax, traffic(2, 3), per_element(5, 4))
"""Softmax over the last dimension.

Bytes, forward: read x, write y. Backward: read y and the gradient of y, write that of x. FLOPs, forward:
maximum, subtract, exponential, sum, divide. Backward: y (g - sum(g y)).
"""

RMS_NORM_EPSILON = LAYER_NORM_EPSILON = 1e-5


def rms_norm(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D): x / sqrt(mean(x^2) + EPSILON) * weight. torch's own nn.RMSNorm."""
    return F.rms_norm(x_ND, weight_D.shape, weight_D, RMS_NORM_EPSILON)


RMS_NORM = Operation(
    "rms_norm",
    normal("ND", "D", about=(UNIT, (1.0, 0.1))),
    rms_norm,
    traffic(2, 3, vectors=(1, 2)),
    per_element(4, 9),
)
"""RMSNorm (arXiv 1910.07467) with a weight, over the last dimension.

Bytes, forward: read x and weight, write y. Backward: read x, gradient, weight; write two gradients. One
number per row, kept or recomputed, is left out.

FLOPs, forward: square, sum, two scalings. Backward: 6 for x's gradient, 3 for the weight's. With a = g w:
sum(a x) and r a - c x, where r and c are one number per row; and sum over rows of g x r.
"""


def layer_norm(x_ND: Tensor, weight_D: Tensor, bias_D: Tensor) -> Tensor:
    """Map (N, D), (D) and (D) to (N, D): (x - mean) / sqrt(variance + EPSILON) * weight + bias."""
    return F.layer_norm(x_ND, weight_D.shape, weight_D, bias_D, LAYER_NORM_EPSILON)


LAYER_NORM = Operation(
    "layer_norm",
    normal("ND", "D", "D", about=(UNIT, (1.0, 0.1), (0.0, 0.1))),
    layer_norm,
    traffic(2, 3, vectors=(2, 3)),
    per_element(7, 13),
)
"""LayerNorm (arXiv 1607.06450) with weight and bias, over the last dimension.

Bytes, forward: read x, weight, bias; write y. Backward: read x, gradient, weight; write three gradients. Two
numbers per row, kept or recomputed, are left out.

FLOPs, forward: sum, subtract, square, sum, scale, weight, bias. Backward, with n = (x - mean) r (2) and
a = g w (1): sum(a) (1), sum(a n) (2), r (a - c1 - c2 n) (4), and the sums over rows of g n (2) and of g (1).
"""


def swiglu(gate_ND: Tensor, up_ND: Tensor) -> Tensor:
    """Map (N, D) and (N, D) to (N, D)."""
    return F.silu(gate_ND) * up_ND


SWIGLU = Operation("swiglu", normal("ND", "ND"), swiglu, traffic(3, 5), per_element(5, 8))
"""The gate of Llama's feed-forward layer (arXiv 2002.05202): silu(gate) * up.

Bytes, forward: read gate and up, write y. Backward: read gate, up and the gradient, write two gradients.

FLOPs, forward: negate, exponential, add, divide, and the product: 5. Backward, with s the sigmoid: of up,
g silu (1), silu = gate s recomputed (1); of gate, g up s (1 + gate (1 - s)) (6).
"""


def gelu_bias(x_ND: Tensor, bias_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D)."""
    return F.gelu(x_ND + bias_D, approximate="tanh")


GELU_FLOPS = (10, 14)
"""Per element, with v = x + b. Forward, v/2 (1 + tanh(c (v + k v^3))): 1 + 5 for the inside, tanh, 3.

Backward: t known, 1 - t^2 (2), inside' = c (1 + 3k v^2) (4), v/2 times both (3), (1 + t)/2 (2), sum and
product with g (2); the bias's sum over rows (1).
"""

GELU_BIAS = Operation(
    "gelu_bias", normal("ND", "D"), gelu_bias, traffic(2, 3, vectors=(1, 2)), per_element(*GELU_FLOPS)
)
"""GPT's activation with the bias of the layer before it: gelu(x + bias), tanh form (arXiv 1606.08415).

Bytes, forward: read x and bias, write y. Backward: read x, bias and the gradient, write two gradients.
"""


def pointwise(x_ND: Tensor, y_ND: Tensor) -> Tensor:
    """Map (N, D) and (N, D) to (N, D)."""
    h_ND = (torch.tanh(x_ND) * torch.sigmoid(y_ND) + x_ND) * y_ND
    return torch.rsqrt(torch.square(h_ND) + 1)


POINTWISE = Operation("pointwise", normal("ND", "ND"), pointwise, traffic(3, 5), per_element(8, 17))
"""A chain of eight pointwise operations: rsqrt(1 + h^2), h = (tanh(x) sigmoid(y) + x) y.

Bytes, forward: read x and y, write the result. Backward: read x, y and the gradient, write two gradients.

FLOPs, forward: eight. Backward, with a = tanh(x), b = sigmoid(y), t = ab + x and r the result: of h
-g h r^3 (5); of t times y (1); of x with 1 + b (1 - a^2) (5); of y with t and a b (1 - b) (6).
"""


def copy_inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
    """Return x_ND, normal, and out_ND, already mapped."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    x_ND = x_ND.to(workload.torch_dtype)
    return x_ND, torch.zeros_like(x_ND)


def copy(x_ND: Tensor, out_ND: Tensor) -> Tensor:
    """Copy `x_ND` into `out_ND` and return it."""
    return out_ND.copy_(x_ND)


COPY = Operation("copy", copy_inputs, copy, traffic(2), per_element(0))
"""A copy into memory that is already mapped: the bandwidth of this host.

Bytes: read x, write it; a cache's read of a line before writing it is not counted. It has no arithmetic.
"""


def linear_bytes_moved(workload: Workload, bias: int = 0) -> float:
    """Return the least bytes. Forward: read x, weight and bias, write y. Backward: read them and the
    gradient, write three gradients. What is computed again in the backward pass never moves."""
    y = workload.rows * workload.intermediate_size
    elements = passes(workload, 1, 2) * elements_read(workload, bias) + passes(workload, 1, 1) * y
    return float(elements * workload.element_B)


def elements_read(workload: Workload, bias: int) -> int:
    """Return the elements of x, the weight and the bias, where there is one."""
    return workload.elements + (workload.hidden_size + bias) * workload.intermediate_size


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Map (rows, hidden_size) and (hidden_size, intermediate_size) to (rows, intermediate_size)."""
    return a @ b


def matmul_flops(workload: Workload) -> float:
    """Return FLOPs: 2 m k n forward, twice that backward."""
    return passes(workload, 2, 4) * float(workload.elements * workload.intermediate_size)


MATMUL = Operation("matmul", normal("ND", "DF"), matmul, linear_bytes_moved, matmul_flops)
"""One matrix product: the arithmetic rate of this host."""


def linear_gelu(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    """Map (N, D), (F, D) and (F) to (N, F): a kernel for the product with its bias, another for the rest."""
    return F.gelu(F.linear(x_ND, weight_FD, bias_F), approximate="tanh")


def linear_gelu_flops(workload: Workload) -> float:
    """Return FLOPs: those of the products, 2 N D F forward, and of `gelu_bias` on (N, F).

    Having the product again is not counted.
    """
    activation = passes(workload, *GELU_FLOPS) * workload.rows * workload.intermediate_size
    return matmul_flops(workload) + activation


def forward_traffic(workload: Workload, activation: str) -> float:
    """Return the bytes that the forward pass's kernels read and write, each of them each tensor once.

    `activation`: the kernel that computes it, as in `Subject.activation`. All read x, weight and bias, and
    write y. In a separate kernel: the product is written and read. In the product's: it is written where a
    backward pass will read it. The backward pass is alike in both cases.
    """
    moved = (2 if workload.backward else 1) if activation == IN_PRODUCT else 3
    elements = elements_read(workload, bias=1) + moved * workload.rows * workload.intermediate_size
    return float(elements * workload.element_B)


LINEAR_GELU = Operation(
    "linear_gelu",
    normal("ND", "FD", "F", about=(UNIT, BY_COLUMNS, UNIT)),
    linear_gelu,
    lambda workload: linear_bytes_moved(workload, bias=1),
    linear_gelu_flops,
)
"""A linear layer and its activation, gelu(x W^T + bias), tanh form: the up-projection of GPT's MLP."""

INDEX_B = 8


def linear_cross_entropy_inputs(
    workload: Workload, generator: torch.Generator, device: torch.device
) -> Tensors:
    """Return x_ND and weight_VD, with logits of about 1, and targets_N."""
    matrices = normal("ND", "VD", about=(UNIT, BY_COLUMNS))(workload, generator, device)
    targets_N = torch.randint(workload.vocab_size, (workload.rows,), generator=generator, device=device)
    return (*matrices, targets_N)


def linear_cross_entropy_bytes_moved(workload: Workload) -> float:
    """Forward: read x, weight and targets. Backward: read them again, write both gradients. No logits."""
    matrices = (workload.rows + workload.vocab_size) * workload.hidden_size * workload.element_B
    return float(passes(workload, 1, 2) * matrices + passes(workload, 1, 1) * workload.rows * INDEX_B)


def linear_cross_entropy_flops(workload: Workload) -> float:
    """Forward: 2 N D V, and per logit maximum, subtract, exponential, sum. Backward: 4 N D V and 2 a logit.

    Those two: the probability less the target, over N. Having the logits again is not counted.
    """
    per_logit = passes(workload, 2 * workload.hidden_size + 4, 4 * workload.hidden_size + 2)
    return float(workload.rows * workload.vocab_size) * per_logit


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
    return float(passes(workload, 4, 8) * head_elements(workload) * workload.element_B)


def head_elements(workload: Workload) -> int:
    """Return the elements of (B, H, T, K)."""
    return workload.rows * workload.num_attention_heads * workload.head_size


def attention_flops(workload: Workload) -> float:
    """Forward 4 B H T^2 K, backward 2.5 times that, causal half: arXiv 2307.08691, 4.1. Products alone.

    Its backward pass has five products, one of which is the scores had again.
    """
    pairs = workload.micro_batch_size * workload.num_attention_heads * workload.seq_len**2
    forward = 4.0 * pairs * workload.head_size / (2 if workload.causal else 1)
    return forward * passes(workload, 1, 2.5)


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


def rotary_bytes_moved(workload: Workload) -> float:
    """Forward: read x and both tables, write y. Backward: read the gradient and the tables, write x's."""
    tables = 2 * workload.seq_len * workload.head_size
    return float(passes(workload, 1, 1) * (2 * head_elements(workload) + tables) * workload.element_B)


def rotary_flops(workload: Workload) -> float:
    """Return FLOPs: per element and pass two products and a sum; the backward pass rotates back."""
    return 3.0 * head_elements(workload) * passes(workload, 1, 1)


ROTARY = Operation("rotary", rotary_inputs, rotary, rotary_bytes_moved, rotary_flops)
"""Rotary position embedding (arXiv 2104.09864), in the halves form of suites/training/models/model.py."""

EVERY = (
    *(SOFTMAX, RMS_NORM, LAYER_NORM, SWIGLU, GELU_BIAS, LINEAR_GELU, ROTARY, LINEAR_CROSS_ENTROPY),
    *(adamw.OPERATION, POINTWISE, ATTENTION, COPY, MATMUL),
)
OPERATIONS: dict[str, Operation] = {one.name: one for one in EVERY}
"""Every operation of the suite but the training step, by name."""
