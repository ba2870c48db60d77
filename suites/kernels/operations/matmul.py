"""One matrix product: the arithmetic rate of this host."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a of (rows, hidden_size) and b of (hidden_size, intermediate_size), normal."""
    a = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    b = torch.randn(workload.hidden_size, workload.intermediate_size, generator=generator, device=device)
    dtype, needed = workload.torch_dtype, workload.backward
    return a.to(dtype).requires_grad_(needed), b.to(dtype).requires_grad_(needed)


def eager(a: Tensor, b: Tensor) -> Tensor:
    """Map (rows, hidden_size) and (hidden_size, intermediate_size) to (rows, intermediate_size)."""
    return a @ b


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read a and b, write c. Backward: read a, b and c's gradient, write two
    gradients."""
    a, b = workload.rows * workload.hidden_size, workload.hidden_size * workload.intermediate_size
    c = workload.rows * workload.intermediate_size
    elements = a + b + c + (2 * (a + b) + c if workload.backward else 0)
    return float(elements * workload.element_B)


def flops(workload: Workload) -> float:
    """Return FLOPs: 2 m k n forward, twice that backward."""
    product = 2.0 * workload.rows * workload.hidden_size * workload.intermediate_size
    return product * (3 if workload.backward else 1)


OPERATION = Operation("matmul", inputs, eager, bytes_moved, flops)
