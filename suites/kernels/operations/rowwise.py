"""Operations on rows (N, D): softmax, norms, activations, a chain of pointwise operations, a copy."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload

Tensors = tuple[Tensor, ...]


def leaves(workload: Workload, *tensors: Tensor) -> Tensors:
    """Return tensors in the workload's type, to be differentiated where it has a backward pass."""
    return tuple(one.to(workload.torch_dtype).requires_grad_(workload.backward) for one in tensors)


def normal(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
    """Return x_ND, normal."""
    return leaves(
        workload, torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    )


def two_normal(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
    """Return x_ND and y_ND, normal."""
    size = (2, workload.rows, workload.hidden_size)
    x_ND, y_ND = torch.randn(size, generator=generator, device=device)
    return leaves(workload, x_ND.clone(), y_ND.clone())


def traffic(
    forward: int, backward: int = 0, vectors: tuple[int, int] = (0, 0)
) -> Callable[[Workload], float]:
    """Return the least bytes by workload: tensors (N, D) that each pass reads and writes, and vectors (D)."""

    def bytes_moved(workload: Workload) -> float:
        rows = workload.rows * (forward + (backward if workload.backward else 0))
        ones = vectors[0] + (vectors[1] if workload.backward else 0)
        return float((rows + ones) * workload.hidden_size * workload.element_B)

    return bytes_moved


def per_element(forward: int, backward: int = 0) -> Callable[[Workload], float]:
    """Return FLOPs by workload: of an element of (N, D) in each pass."""

    def flops(workload: Workload) -> float:
        return float((forward + (backward if workload.backward else 0)) * workload.elements)

    return flops


def softmax(x_ND: Tensor) -> Tensor:
    """Map (N, D) to (N, D)."""
    return torch.softmax(x_ND, dim=-1)


SOFTMAX = Operation("softmax", normal, softmax, traffic(2, 3), per_element(5, 4))
"""Softmax over the last dimension.

Bytes, forward: read x, write y. Backward: read y and the gradient of y, write that of x. FLOPs, forward:
maximum, subtract, exponential, sum, divide. Backward: y (g - sum(g y)).
"""

RMS_NORM_EPSILON = LAYER_NORM_EPSILON = 1e-5


def rms_norm_inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
    """Return x_ND normal, weight_D about 1."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    weight_D = 1 + 0.1 * torch.randn(workload.hidden_size, generator=generator, device=device)
    return leaves(workload, x_ND, weight_D)


def rms_norm(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D): x / sqrt(mean(x^2) + EPSILON) * weight. torch's own nn.RMSNorm."""
    return F.rms_norm(x_ND, weight_D.shape, weight_D, RMS_NORM_EPSILON)


RMS_NORM = Operation("rms_norm", rms_norm_inputs, rms_norm, traffic(2, 3, vectors=(1, 2)), per_element(4, 9))
"""RMSNorm (arXiv 1910.07467) with a weight, over the last dimension.

Bytes, forward: read x and weight, write y. Backward: read x, gradient, weight; write two gradients. One
number per row, kept or recomputed, is left out.

FLOPs, forward: square, sum, two scalings. Backward: 6 for x's gradient, 3 for the weight's. With a = g w:
sum(a x) and r a - c x, where r and c are one number per row; and sum over rows of g x r.
"""


def layer_norm_inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
    """Return x_ND normal, weight_D about 1, bias_D about 0."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    weight_D = 1 + 0.1 * torch.randn(workload.hidden_size, generator=generator, device=device)
    bias_D = 0.1 * torch.randn(workload.hidden_size, generator=generator, device=device)
    return leaves(workload, x_ND, weight_D, bias_D)


def layer_norm(x_ND: Tensor, weight_D: Tensor, bias_D: Tensor) -> Tensor:
    """Map (N, D), (D) and (D) to (N, D): (x - mean) / sqrt(variance + EPSILON) * weight + bias."""
    return F.layer_norm(x_ND, weight_D.shape, weight_D, bias_D, LAYER_NORM_EPSILON)


LAYER_NORM = Operation(
    "layer_norm", layer_norm_inputs, layer_norm, traffic(2, 3, vectors=(2, 3)), per_element(7, 13)
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


SWIGLU = Operation("swiglu", two_normal, swiglu, traffic(3, 5), per_element(5, 8))
"""The gate of Llama's feed-forward layer (arXiv 2002.05202): silu(gate) * up.

Bytes, forward: read gate and up, write y. Backward: read gate, up and the gradient, write two gradients.

FLOPs, forward: negate, exponential, add, divide, and the product: 5. Backward, with s the sigmoid: of up,
g silu (1), silu = gate s recomputed (1); of gate, g up s (1 + gate (1 - s)) (6).
"""


def gelu_bias_inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Tensors:
    """Return x_ND and bias_D, normal."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    bias_D = torch.randn(workload.hidden_size, generator=generator, device=device)
    return leaves(workload, x_ND, bias_D)


def gelu_bias(x_ND: Tensor, bias_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D)."""
    return F.gelu(x_ND + bias_D, approximate="tanh")


GELU_FLOPS = (10, 14)
"""Per element, with v = x + b. Forward, v/2 (1 + tanh(c (v + k v^3))): 1 + 5 for the inside, tanh, 3.

Backward: t known, 1 - t^2 (2), inside' = c (1 + 3k v^2) (4), v/2 times both (3), (1 + t)/2 (2), sum and
product with g (2); the bias's sum over rows (1).
"""

GELU_BIAS = Operation(
    "gelu_bias", gelu_bias_inputs, gelu_bias, traffic(2, 3, vectors=(1, 2)), per_element(*GELU_FLOPS)
)
"""GPT's activation with the bias of the layer before it: gelu(x + bias), tanh form (arXiv 1606.08415).

Bytes, forward: read x and bias, write y. Backward: read x, bias and the gradient, write two gradients.
"""


def pointwise(x_ND: Tensor, y_ND: Tensor) -> Tensor:
    """Map (N, D) and (N, D) to (N, D)."""
    h_ND = (torch.tanh(x_ND) * torch.sigmoid(y_ND) + x_ND) * y_ND
    return torch.rsqrt(torch.square(h_ND) + 1)


POINTWISE = Operation("pointwise", two_normal, pointwise, traffic(3, 5), per_element(8, 17))
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
