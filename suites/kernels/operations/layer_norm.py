"""LayerNorm (arXiv 1607.06450) with weight and bias, over the last dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload

EPSILON = 1e-5


def inputs(
    workload: Workload, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x_ND normal, weight_D about 1, bias_D about 0."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    weight_D = 1 + 0.1 * torch.randn(workload.hidden_size, generator=generator, device=device)
    bias_D = 0.1 * torch.randn(workload.hidden_size, generator=generator, device=device)
    x, weight, bias = (
        one.to(workload.torch_dtype).requires_grad_(workload.backward) for one in (x_ND, weight_D, bias_D)
    )
    return x, weight, bias


def eager(x_ND: Tensor, weight_D: Tensor, bias_D: Tensor) -> Tensor:
    """Map (N, D), (D) and (D) to (N, D): (x - mean) / sqrt(variance + EPSILON) * weight + bias."""
    return F.layer_norm(x_ND, weight_D.shape, weight_D, bias_D, EPSILON)


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read x, weight, bias; write y. Backward: read x, gradient, weight;
    write three gradients.

    Two numbers per row, kept or recomputed, are left out.
    """
    rows = workload.rows * (2 + (3 if workload.backward else 0))
    vectors = 2 + (3 if workload.backward else 0)
    return float((rows + vectors) * workload.hidden_size * workload.element_B)


def flops(workload: Workload) -> float:
    """Return FLOPs. Per element, forward: sum, subtract, square, sum, scale, weight, bias. Backward: 13.

    With n = (x - mean) r (2) and a = g w (1): sum(a) (1), sum(a n) (2), r (a - c1 - c2 n) (4), and the sums
    over rows of g n (2) and of g (1).
    """
    return float((7 + (13 if workload.backward else 0)) * workload.rows * workload.hidden_size)


OPERATION = Operation("layer_norm", inputs, eager, bytes_moved, flops)
