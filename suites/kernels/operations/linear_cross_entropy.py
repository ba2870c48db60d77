"""The output layer with its loss: mean cross-entropy of x W^T, over the full vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload
from suites.training.models.model import linear_cross_entropy

INDEX_B = 8

Inputs = tuple[Tensor, Tensor, Tensor]


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Inputs:
    """Return x_ND normal, weight_VD of deviation 1/sqrt(D), so that logits are about 1, and targets_N."""
    x_ND = torch.randn(workload.rows, workload.hidden_size, generator=generator, device=device)
    weight_VD = torch.randn(workload.vocab_size, workload.hidden_size, generator=generator, device=device)
    weight_VD /= workload.hidden_size**0.5
    targets_N = torch.randint(workload.vocab_size, (workload.rows,), generator=generator, device=device)
    dtype, needed = workload.torch_dtype, workload.backward
    return x_ND.to(dtype).requires_grad_(needed), weight_VD.to(dtype).requires_grad_(needed), targets_N


eager = linear_cross_entropy


def bytes_moved(workload: Workload) -> float:
    """Forward: read x, weight and targets. Backward: read them again, write both gradients. No logits."""
    passes = 1 + (2 if workload.backward else 0)
    matrices = (workload.rows + workload.vocab_size) * workload.hidden_size * workload.element_B
    return float(passes * matrices + workload.rows * INDEX_B * (2 if workload.backward else 1))


def flops(workload: Workload) -> float:
    """Forward: 2 N D V, and per logit maximum, subtract, exponential, sum. Backward: 4 N D V and 2 a logit.

    Those two: the probability less the target, over N. Having the logits again is not counted.
    """
    logits = float(workload.rows * workload.vocab_size)
    return logits * (
        2 * workload.hidden_size + 4 + (4 * workload.hidden_size + 2 if workload.backward else 0)
    )


OPERATION = Operation("linear_cross_entropy", inputs, eager, bytes_moved, flops)
