"""RMSNorm (arXiv 1910.07467) with a weight, over the last dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload

EPSILON = 1e-5


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return x_ND normal, weight_D about 1."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    weight_D = 1 + 0.1 * torch.randn(workload.hidden_size, generator=generator, device=device)
    dtype, needed = workload.torch_dtype, workload.backward
    return x_ND.to(dtype).requires_grad_(needed), weight_D.to(dtype).requires_grad_(needed)


def eager(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D): x / sqrt(mean(x^2) + EPSILON) * weight. torch's own nn.RMSNorm."""
    return F.rms_norm(x_ND, weight_D.shape, weight_D, EPSILON)


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read x and weight, write y. Backward: read x, gradient, weight; write
    two gradients.

    One number per row, kept or recomputed, is left out.
    """
    rows = workload.rows * (2 + (3 if workload.backward else 0))
    weights = 1 + (2 if workload.backward else 0)
    return float((rows + weights) * workload.hidden_size * workload.element_B)


def flops(workload: Workload) -> float:
    """Return FLOPs. Per element, forward: square, sum, two scalings. Backward: 6 for x's gradient, 3 for the
    weight's.

    With a = g w: sum(a x) and r a - c x, where r and c are one number per row; and sum over rows of g x r.
    """
    return float((4 + (9 if workload.backward else 0)) * workload.rows * workload.hidden_size)


OPERATION = Operation("rms_norm", inputs, eager, bytes_moved, flops)
