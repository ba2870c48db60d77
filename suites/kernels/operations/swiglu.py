"""The gate of Llama's feed-forward layer (arXiv 2002.05202): silu(gate) * up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return gate_ND and up_ND, normal."""
    size = (2, workload.rows, workload.hidden_size)
    gate_ND, up_ND = torch.randn(size, generator=generator, device=device).to(workload.torch_dtype)
    return gate_ND.clone().requires_grad_(workload.backward), up_ND.clone().requires_grad_(workload.backward)


def eager(gate_ND: Tensor, up_ND: Tensor) -> Tensor:
    """Map (N, D) and (N, D) to (N, D)."""
    return F.silu(gate_ND) * up_ND


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read gate and up, write y. Backward: read gate, up and the gradient,
    write two gradients."""
    tensors = 3 + (5 if workload.backward else 0)
    return float(tensors * workload.rows * workload.hidden_size * workload.element_B)


def flops(workload: Workload) -> float:
    """Return FLOPs. Per element, forward: negate, exponential, add, divide, and the product: 5.

    Backward, with s the sigmoid: of up, g silu (1), silu = gate s recomputed (1); of gate,
    g up s (1 + gate (1 - s)) (6).
    """
    return float((5 + (8 if workload.backward else 0)) * workload.rows * workload.hidden_size)


OPERATION = Operation("swiglu", inputs, eager, bytes_moved, flops)
