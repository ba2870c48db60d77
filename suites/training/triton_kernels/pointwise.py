"""The chain rsqrt(1 + h^2), h = (tanh(x) sigmoid(y) + x) y, as Triton kernels over the tensors laid flat.

Traffic in bytes per element of size s: forward 3 s (read x and y, write the result); backward 5 s (read x, y
and the gradient of the result, write those of x and y): intermediate values are recomputed, not kept.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.triton_kernels.targets import Compilation
from suites.training.triton_kernels.tiles import TILE_ELEMENTS, WARPS, OfTwo, compilations


@triton.autotune(WARPS, key=["elements"])
@triton.jit
def pointwise_forward(x, y, result, elements, BLOCK: tl.constexpr):
    """Compute all eight operations in registers; tanh(u) = 2 sigmoid(2 u) - 1."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    xs = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    ys = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    h = ((2 * tl.sigmoid(2 * xs) - 1) * tl.sigmoid(ys) + xs) * ys
    tl.store(result + at, tl.rsqrt(h * h + 1), mask=inside)


@triton.autotune(WARPS, key=["elements"])
@triton.jit
def pointwise_backward(x, y, gradient, x_gradient, y_gradient, elements, BLOCK: tl.constexpr):
    """Compute the gradients of x and y, which follow from those of h and t.

    Let a = tanh(x), b = sigmoid(y), t = a b + x, r the result and g its gradient. Then dh = -g h r^3,
    dt = dh y, dx = dt (1 + b (1 - a^2)), dy = dh t + dt a b (1 - b).
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    xs = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    ys = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    a = 2 * tl.sigmoid(2 * xs) - 1
    b = tl.sigmoid(ys)
    t = a * b + xs
    h = t * ys
    r = tl.rsqrt(h * h + 1)
    h_gradient = -g * (h * r) * r * r
    t_gradient = h_gradient * ys
    tl.store(x_gradient + at, t_gradient * (1 + b * (1 - a * a)), mask=inside)
    tl.store(y_gradient + at, h_gradient * t + t_gradient * a * b * (1 - b), mask=inside)


def pointwise(x_ND: Tensor, y_ND: Tensor) -> Tensor:
    """Map two tensors of one shape to that shape; differentiable once."""
    return OfTwo.apply(x_ND, y_ND, pointwise_forward, pointwise_backward)  # type: ignore[no-any-return]


def kernels(workload_dtype: str) -> list[Compilation]:
    """Return both kernels, for inputs of type fp32 | bf16 | fp16."""
    of = {"pointwise_forward": pointwise_forward, "pointwise_backward": pointwise_backward}
    return compilations(workload_dtype, {"BLOCK": TILE_ELEMENTS}, of)
