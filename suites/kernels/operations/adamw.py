"""AdamW (arXiv 1711.05101) over a list of tensors, as torch's loop over them does it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from suites.kernels.subject import Operation, Workload

LEARNING_RATE = 1e-3
BETAS = (0.9, 0.999)
EPSILON = 1e-8
WEIGHT_DECAY = 0.01
"""torch.optim.AdamW's defaults."""

STEP = 10.0
"""The update that `inputs` stands at: states are neither zero nor settled."""

Tensors = list[Tensor]


def inputs(
    workload: Workload, generator: torch.Generator, device: torch.device
) -> tuple[Tensors, Tensors, Tensors, Tensors, Tensor]:
    """Parameters, gradients, first and second moments, each `tensors` of (N, D); the step, counted from 1."""

    def draw() -> Tensors:
        size = (workload.rows, workload.hidden)
        drawn = [torch.randn(size, generator=generator, device=device) for _ in range(workload.tensors)]
        return [one.to(workload.torch_dtype) for one in drawn]

    squares = [one.square() for one in draw()]
    return draw(), draw(), draw(), squares, torch.full((1,), STEP, device=device)


@torch.no_grad()
def eager(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    step_1: Tensor,
) -> list[Tensor]:
    """One update in place, with decoupled weight decay; `step_1` is read, not counted on. The parameters."""
    wide = torch.promote_types(parameters[0].dtype, torch.float32)
    correction_1 = (1 - BETAS[0] ** step_1.double()).to(wide)
    root_1 = (1 - BETAS[1] ** step_1.double()).sqrt().to(wide)
    for parameter, gradient, exp_avg, exp_avg_sq in zip(
        parameters, gradients, exp_avgs, exp_avg_sqs, strict=True
    ):
        parameter.mul_(1 - LEARNING_RATE * WEIGHT_DECAY)
        exp_avg.lerp_(gradient, 1 - BETAS[0])
        exp_avg_sq.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        denominator = (exp_avg_sq.sqrt() / root_1).add_(EPSILON).mul_(correction_1)
        parameter.addcdiv_(exp_avg, denominator.to(parameter.dtype), value=-LEARNING_RATE)
    return list(parameters)


def elements(workload: Workload) -> int:
    """Of all parameters."""
    return workload.tensors * workload.rows * workload.hidden


def bytes_moved(workload: Workload) -> float:
    """Read parameter, gradient and two moments; write parameter and two moments."""
    return 7.0 * elements(workload) * workload.element_B


def flops(workload: Workload) -> float:
    """Per element: decay 1, first moment 3, second 4, denominator 4 (two of them scalings), update 3."""
    return 15.0 * elements(workload)


OPERATION = Operation("adamw", inputs, eager, bytes_moved, flops)
