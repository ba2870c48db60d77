"""A copy into memory that is already mapped: the bandwidth of this host."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return x_ND, normal, and out_ND, already mapped."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    x_ND = x_ND.to(workload.torch_dtype)
    return x_ND, torch.zeros_like(x_ND)


def eager(x_ND: Tensor, out_ND: Tensor) -> Tensor:
    """Copy `x_ND` into `out_ND` and return it."""
    return out_ND.copy_(x_ND)


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes: read x, write it; a cache's read of a line before writing it is not counted."""
    return 2.0 * workload.rows * workload.hidden_size * workload.element_B


def flops(workload: Workload) -> float:
    """Return 0: a copy has no arithmetic."""
    return 0.0


OPERATION = Operation("copy", inputs, eager, bytes_moved, flops)
