"""GPT's activation with the bias of the layer before it: gelu(x + bias), tanh form (arXiv 1606.08415)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return x_ND and bias_D, normal."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    bias_D = torch.randn(workload.hidden_size, generator=generator, device=device)
    dtype, needed = workload.torch_dtype, workload.backward
    return x_ND.to(dtype).requires_grad_(needed), bias_D.to(dtype).requires_grad_(needed)


def eager(x_ND: Tensor, bias_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D)."""
    return F.gelu(x_ND + bias_D, approximate="tanh")


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read x and bias, write y. Backward: read x, bias and the gradient,
    write two gradients."""
    rows = workload.rows * (2 + (3 if workload.backward else 0))
    biases = 1 + (2 if workload.backward else 0)
    return float((rows + biases) * workload.hidden_size * workload.element_B)


def flops_per_element(workload: Workload) -> int:
    """Return FLOPs per element. Forward, with v = x + b: v/2 (1 + tanh(c (v + k v^3))): 1 + 5 for the
    inside, tanh, 3.

    Backward: t known, 1 - t^2 (2), inside' = c (1 + 3k v^2) (4), v/2 times both (3), (1 + t)/2 (2), sum and
    product with g (2); the bias's sum over rows (1).
    """
    return 10 + (14 if workload.backward else 0)


def flops(workload: Workload) -> float:
    """Return FLOPs: those per element, for (N, D)."""
    return float(flops_per_element(workload) * workload.elements)


OPERATION = Operation("gelu_bias", inputs, eager, bytes_moved, flops)
