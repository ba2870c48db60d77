"""Right first, for the training step: gradients and losses against plain PyTorch's in fp32, at the own size.

Every parameter's gradient of the first step, by the norm of the difference; then the losses of `STEPS` steps
on one batch, which hold the optimizer to it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harness.records import WrongResult
from suites.kernels.bound_call import first_call, seconds_of
from suites.kernels.subject import Operation, Subject, Workload
from suites.kernels.training_step import Trainer, trainer_of

STEPS = 3
"""One to see the gradients, two that the updates change; ten would take longer than what is timed."""

GRADIENT_FACTOR = 10.0
"""A gradient passes every layer twice: in fp32 it may be off by so many times what a loss may."""

BF16_GRADIENT = 5e-2
"""Of a gradient's norm, where products are in bf16: some three times the worst seen, 1.7e-2 at 60 M."""


class Course(NamedTuple):
    """What plain PyTorch gives: the losses, and each parameter's gradient in the first step."""

    losses: tuple[float, ...]
    gradients: dict[str, Tensor]


def check_step(subject: Subject) -> None:
    """Raises WrongResult naming the first gradient or loss that is off. Leaves `max_error` in `held`."""
    expected = course_of(subject.operation, subject.workload, subject.seed, subject.device)
    trainer = trainer_of(subject)
    loss = first_call(subject, trainer.loss_and_gradients)
    worst = check_loss(subject, 0, loss.item(), expected)
    for name, parameter in trainer.model.named_parameters():
        worst = max(worst, check_gradient(subject, name, parameter, expected.gradients[name]))
    subject.held["first_s"] += seconds_of(trainer.update, subject.device)[0]
    for index in range(1, STEPS):
        worst = max(worst, check_loss(subject, index, trainer.step().item(), expected))
    subject.held["max_error"] = worst
    subject.held["compared"] = f"{STEPS} losses and every gradient of the first step, against plain fp32"


@lru_cache(maxsize=1)
def course_of(operation: Operation, workload: Workload, seed: int, device: torch.device) -> Course:
    """The baseline's course: once for all variants of one process."""
    plain = Subject(replace(workload, dtype="fp32"), seed, operation, device, operation.eager)
    trainer = Trainer(plain)
    losses = [trainer.loss_and_gradients().item()]
    gradients = {
        name: one.grad.clone() for name, one in trainer.model.named_parameters() if one.grad is not None
    }
    trainer.update()
    losses += [trainer.step().item() for _ in range(1, STEPS)]
    return Course(tuple(losses), gradients)


def check_loss(subject: Subject, index: int, ours: float, expected: Course) -> float:
    """How far a loss is off, of the first."""
    theirs = expected.losses[index]
    off = abs(ours - theirs) / expected.losses[0]
    if not off <= subject.tolerance:
        raise WrongResult(
            f"loss of step {index} is {ours:.6f}, the baseline's {theirs:.6f}: off by {off:.2e} of the "
            f"first, allowed {subject.tolerance:.0e}"
        )
    return off


def check_gradient(subject: Subject, name: str, parameter: nn.Parameter, expected: Tensor) -> float:
    """How far a parameter's gradient is off: |ours - theirs| over |theirs|, Euclidean norms."""
    if parameter.grad is None:
        raise WrongResult(f"{name} has no gradient; training_step")
    allowed = BF16_GRADIENT if subject.precision == "bf16" else GRADIENT_FACTOR * subject.tolerance
    off = float((parameter.grad - expected).norm() / expected.norm())
    if not off <= allowed:
        raise WrongResult(
            f"gradient of {name} {list(expected.shape)} is off by {off:.2e} of its norm, allowed "
            f"{allowed:.0e}; training_step"
        )
    return off
