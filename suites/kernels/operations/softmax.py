"""Softmax over the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> tuple[Tensor]:
    """Return x_ND, normal."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    return (x_ND.to(workload.torch_dtype).requires_grad_(workload.backward),)


def eager(x_ND: Tensor) -> Tensor:
    """Map (N, D) to (N, D)."""
    return torch.softmax(x_ND, dim=-1)


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read x, write y. Backward: read y and the gradient of y, write that of
    x."""
    tensors = 2 + (3 if workload.backward else 0)
    return float(tensors * workload.rows * workload.hidden_size * workload.element_B)


def flops(workload: Workload) -> float:
    """Return FLOPs. Per element, forward: maximum, subtract, exponential, sum, divide. Backward: y (g - sum(g
    y))."""
    return float((5 + (4 if workload.backward else 0)) * workload.rows * workload.hidden_size)


OPERATION = Operation("softmax", inputs, eager, bytes_moved, flops)
