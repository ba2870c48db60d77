"""torch.optim.AdamW with fused=True: one kernel for all tensors, each read and written once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from suites.kernels.op_replacement import STEP, replace_operation
from suites.kernels.step.training_step import with_techniques
from suites.kernels.subject import Subject
from suites.training.optimizers import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY


@torch.no_grad()
def adamw(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    step_1: Tensor,
) -> list[Tensor]:
    """Update once in place, as `operations.adamw.eager`. torch counts steps itself, from the one before.

    It has a step for each tensor; they are kept, and written by one small operation a call.
    """
    all_steps, steps = steps_of(len(parameters), step_1.device)
    torch.sub(step_1.expand(len(parameters)), 1, out=all_steps)
    torch_adamw(
        list(parameters),
        list(gradients),
        list(exp_avgs),
        list(exp_avg_sqs),
        [],
        steps,
        fused=True,
        amsgrad=False,
        beta1=BETAS[0],
        beta2=BETAS[1],
        lr=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        eps=EPSILON,
        maximize=False,
    )
    return list(parameters)


@lru_cache(maxsize=4)
def steps_of(tensors: int, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Return a step count for each tensor, fp32: all in one tensor, and each as a scalar view."""
    every = torch.zeros(tensors, device=device)
    return every, list(every.unbind())


def apply(subject: Subject) -> Subject:
    """Return the subject with the fused optimizer; raises `Unavailable` where nothing is updated."""
    workload = subject.workload
    if workload.operation == STEP and workload.part in ("all", "adamw"):
        return with_techniques(subject, [("optimizer", {"impl": "fused"})])
    return replace_operation(subject, {"adamw": adamw}, "fused_optimizer")
