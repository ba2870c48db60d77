"""AdamW (arXiv 1711.05101) over a list of tensors, as torch.optim.AdamW does it by default.

That is a loop over the tensors on the CPU, and foreach functions over all of them on CUDA. The step is a
tensor here, so that the function can be compiled. Passes over memory are the same: the step size goes into
the two scalars of the denominator, as in torch/optim/adam.py, _single_tensor_adam, capturable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload
from suites.training.optimizers import ADAMW_FLOPS, BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY

STEP = 10.0
"""Number of the update that `inputs` describes: states are neither zero nor settled."""

Tensors = list[Tensor]

Groups = tuple[Tensors, Tensors, Tensors, Tensors]


def inputs(
    workload: Workload, generator: torch.Generator, device: torch.device
) -> tuple[Tensors, Tensors, Tensors, Tensors, Tensor]:
    """Return parameters, gradients, both moments, each `tensors` of (N, D), and the step, counted from 1."""

    def draw() -> Tensors:
        size = (workload.rows, workload.hidden_size)
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
    """Update in place, with decoupled weight decay, and return the parameters; `step_1` is not advanced."""
    groups = (list(parameters), list(gradients), list(exp_avgs), list(exp_avg_sqs))
    update = at_once if parameters[0].device.type == "cuda" else one_by_one
    update(groups, *scalars(parameters[0].dtype, step_1))
    return list(parameters)


def scalars(dtype: torch.dtype, step_1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the divisor of sqrt(v) and the term added to the quotient: scalar tensors, at least fp32.

    lr / c1 m / (sqrt(v) / r + e) is m / (sqrt(v) / (r s) + e / s) with s = lr / c1, c1 = 1 - beta1^step and
    r = sqrt(1 - beta2^step); both carry the update's minus sign.
    """
    step = step_1[0].double()
    size = -LEARNING_RATE / (1 - BETAS[0] ** step)
    divisor = (1 - BETAS[1] ** step).sqrt() * size
    wide = torch.promote_types(dtype, torch.float32)
    return divisor.to(wide), (EPSILON / size).to(wide)


def one_by_one(groups: Groups, divisor: Tensor, addend: Tensor) -> None:
    """Update in a loop, torch's default on the CPU; `groups` are parameters, gradients, both moments."""
    for parameter, gradient, exp_avg, exp_avg_sq in zip(*groups, strict=True):
        parameter.mul_(1 - LEARNING_RATE * WEIGHT_DECAY)
        exp_avg.lerp_(gradient, 1 - BETAS[0])
        exp_avg_sq.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        parameter.addcdiv_(exp_avg, (exp_avg_sq.sqrt() / divisor).add_(addend))


def at_once(groups: Groups, divisor: Tensor, addend: Tensor) -> None:
    """Update by foreach functions, torch's default on CUDA: each pass over all tensors together."""
    parameters, gradients, exp_avgs, exp_avg_sqs = groups
    torch._foreach_mul_(parameters, 1 - LEARNING_RATE * WEIGHT_DECAY)
    torch._foreach_lerp_(exp_avgs, gradients, 1 - BETAS[0])
    torch._foreach_mul_(exp_avg_sqs, BETAS[1])
    torch._foreach_addcmul_(exp_avg_sqs, gradients, gradients, 1 - BETAS[1])
    denominators = torch._foreach_sqrt(exp_avg_sqs)
    torch._foreach_div_(denominators, divisor)
    torch._foreach_add_(denominators, addend)
    torch._foreach_addcdiv_(parameters, exp_avgs, denominators)


@torch.no_grad()
def fused(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    step_1: Tensor,
) -> list[Tensor]:
    """Update as `eager` by torch's fused kernel. torch counts steps itself, from the one before.

    It has a step for each tensor; they are kept, and written by one small operation a call.
    """
    all_steps, steps = steps_of(len(parameters), step_1.device)
    torch.sub(step_1.expand(len(parameters)), 1, out=all_steps)
    torch_adamw(
        list(parameters), list(gradients), list(exp_avgs), list(exp_avg_sqs), [], steps, fused=True,
        amsgrad=False, beta1=BETAS[0], beta2=BETAS[1], lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY,
        eps=EPSILON, maximize=False,
    )  # fmt: skip
    return list(parameters)


@lru_cache(maxsize=4)
def steps_of(tensors: int, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Return a step count for each tensor, fp32: all in one tensor, and each as a scalar view."""
    every = torch.zeros(tensors, device=device)
    return every, list(every.unbind())


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes: read parameter, gradient and two moments; write parameter and two moments."""
    return 7.0 * workload.tensors * workload.elements * workload.element_B


def flops(workload: Workload) -> float:
    """Return FLOPs by formula."""
    return float(ADAMW_FLOPS * workload.tensors * workload.elements)


OPERATION = Operation("adamw", inputs, eager, bytes_moved, flops)
