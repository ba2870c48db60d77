"""torch.optim.AdamW with fused=True: one kernel for all tensors, each read and written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from harness.records import Host
from suites.kernels.arms import place
from suites.kernels.operations.adamw import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY
from suites.kernels.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: Host) -> str | None:
    """torch has it for the CPU and for CUDA."""
    return None


@torch.no_grad()
def adamw(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    step_1: Tensor,
) -> list[Tensor]:
    """One update in place, as `operations.adamw.eager`. torch counts steps itself, from the one before."""
    steps = list((step_1 - 1).float().repeat(len(parameters)).unbind())
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


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject with the fused optimizer; `Unavailable` where there is none to update."""
    return place(subject, {"adamw": adamw}, "fused_optimizer")
