"""A chain of eight pointwise operations: rsqrt(1 + h^2), h = (tanh(x) sigmoid(y) + x) y."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return x_ND and y_ND, normal."""
    size = (2, workload.rows, workload.hidden_size)
    x_ND, y_ND = torch.randn(size, generator=generator, device=device).to(workload.torch_dtype)
    return x_ND.clone().requires_grad_(workload.backward), y_ND.clone().requires_grad_(workload.backward)


def eager(x_ND: Tensor, y_ND: Tensor) -> Tensor:
    """Map (N, D) and (N, D) to (N, D)."""
    h_ND = (torch.tanh(x_ND) * torch.sigmoid(y_ND) + x_ND) * y_ND
    return torch.rsqrt(torch.square(h_ND) + 1)


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read x and y, write the result. Backward: read x, y and the gradient,
    write two gradients."""
    tensors = 3 + (5 if workload.backward else 0)
    return float(tensors * workload.rows * workload.hidden_size * workload.element_B)


def flops(workload: Workload) -> float:
    """Return FLOPs. Per element, forward: eight. Backward, with a = tanh(x), b = sigmoid(y), t = ab + x and r
    the result:

    of h -g h r^3 (5); of t times y (1); of x with 1 + b (1 - a^2) (5); of y with t and a b (1 - b) (6).
    """
    return float((8 + (17 if workload.backward else 0)) * workload.rows * workload.hidden_size)


OPERATION = Operation("pointwise", inputs, eager, bytes_moved, flops)
