"""SwiGLU, silu(gate) * up, as Triton kernels over the tensors laid flat.

Traffic in bytes per element of size s: forward 3 s (read gate and up, write y); backward 5 s (read gate, up
and the gradient of y, write those of gate and up).
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
from suites.training.triton_kernels.tiles import TILE_ELEMENTS, WARPS, cover


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


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(gate)
        launch(swiglu_forward, (cover(y),), gate, up, y, y.numel(), BLOCK=TILE_ELEMENTS)
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        gradients = torch.empty_like(gate), torch.empty_like(up)
        tensors = (gate, up, gradient.contiguous(), *gradients)
        launch(swiglu_backward, (cover(gate),), *tensors, gate.numel(), BLOCK=TILE_ELEMENTS)
        return gradients


def swiglu(gate_ND: Tensor, up_ND: Tensor) -> Tensor:
    """Map two tensors of one shape to that shape; differentiable once."""
    return _SwiGLU.apply(gate_ND, up_ND)  # type: ignore[no-any-return]


def kernels(workload_dtype: str) -> list[Compilation]:
    """Return both kernels, for inputs of type fp32 | bf16 | fp16."""
    data, constexprs = f"*{workload_dtype}", {"BLOCK": TILE_ELEMENTS}
    forward = {"gate": data, "up": data, "y": data, "elements": "i32"}
    names = ("gate", "up", "gradient", "gate_gradient", "up_gradient")
    backward = {**dict.fromkeys(names, data), "elements": "i32"}
    return [
        Compilation("swiglu_forward", swiglu_forward, forward, constexprs, 8),
        Compilation("swiglu_backward", swiglu_backward, backward, constexprs, 8),
    ]
