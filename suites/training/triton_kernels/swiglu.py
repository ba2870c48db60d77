"""SwiGLU, silu(gate) * up, as Triton kernels over the tensors laid flat.

Traffic in bytes per element of size s: forward 3 s (read gate and up, write y); backward 5 s (read gate, up
and the gradient of y, write those of gate and up).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.triton_kernels.targets import Compilation
from suites.training.triton_kernels.tiles import TILE_ELEMENTS, WARPS, OfTwo, compilations


@triton.autotune(WARPS, key=["elements"])
@triton.jit
def swiglu_forward(gate, up, y, elements, BLOCK: tl.constexpr):
    """Compute y = gate sigmoid(gate) up; a program takes BLOCK elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    gates = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, gates * tl.sigmoid(gates) * ups, mask=inside)


@triton.autotune(WARPS, key=["elements"])
@triton.jit
def swiglu_backward(gate, up, gradient, gate_gradient, up_gradient, elements, BLOCK: tl.constexpr):
    """Compute gradients, with s = sigmoid(gate): of gate, g up s (1 + gate (1 - s)); of up, g gate s."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    gates = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gates)
    tl.store(gate_gradient + at, g * ups * s * (1 + gates * (1 - s)), mask=inside)
    tl.store(up_gradient + at, g * gates * s, mask=inside)


def swiglu(gate_ND: Tensor, up_ND: Tensor) -> Tensor:
    """Map two tensors of one shape to that shape; differentiable once."""
    return OfTwo.apply(gate_ND, up_ND, swiglu_forward, swiglu_backward)  # type: ignore[no-any-return]


def kernels(workload_dtype: str) -> list[Compilation]:
    """Return both kernels, for inputs of type fp32 | bf16 | fp16."""
    of = {"swiglu_forward": swiglu_forward, "swiglu_backward": swiglu_backward}
    return compilations(workload_dtype, {"BLOCK": TILE_ELEMENTS}, of)
