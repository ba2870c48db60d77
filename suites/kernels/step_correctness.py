"""Compare a training step's gradients and losses with plain PyTorch's in fp32, at the workload's own size.

Every parameter's gradient of the first step, by the norm of the difference; then the losses of `STEPS` steps
on one batch, which check the optimizer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from harness.records import WrongResult
from suites.kernels.bound_call import seconds_of
from suites.kernels.session import Session
from suites.kernels.subject import Operation, Subject, Workload
from suites.kernels.training_step import Trainer
from suites.training.correctness import FEWEST, require_learning

STEPS = 3
"""Number of steps: one shows the gradients, two the updates; ten would take longer than the timing."""

GRADIENT_FACTOR = 10.0
"""A gradient passes every layer twice: its tolerance in fp32 is this multiple of a loss's."""

BF16_GRADIENT = 5e-2
"""Tolerance of a gradient's norm with bf16 products: about three times the worst seen, 1.7e-2 at 60 M."""


class BaselineSteps(NamedTuple):
    """Plain PyTorch's losses, and each parameter's gradient in the first step."""

    losses: tuple[float, ...]
    gradients: dict[str, Tensor]


def check_step(session: Session) -> None:
    """Raise `WrongResult` naming the first gradient or loss that is off; keep the largest error."""
    subject = session.subject
    expected = baseline_steps(subject.operation, subject.workload, subject.seed, subject.device)
    trainer = session.trainer
    loss = session.first_call(trainer.loss_and_gradients)
    worst = check_loss(subject, 0, loss.item(), expected)
    gradients = trainer.gradients()
    for name, theirs in expected.gradients.items():
        worst = max(worst, check_gradient(subject, name, gradients.get(name), theirs))
    del gradients
    assert session.first_call_s is not None
    session.first_call_s += seconds_of(trainer.update, subject.device)[0]
    losses = [loss.item()]
    for index in range(1, STEPS):
        losses.append(trainer.step().item())
        worst = max(worst, check_loss(subject, index, losses[-1], expected))
    if not math.isfinite(subject.tolerance):
        losses += [trainer.step().item() for _ in range(FEWEST - STEPS)]
        require_learning(losses)
    session.max_error = worst
    session.compared = f"{STEPS} losses and every gradient of the first step, against plain fp32"


@lru_cache(maxsize=1)
def baseline_steps(
    operation: Operation, workload: Workload, seed: int, device: torch.device
) -> BaselineSteps:
    """Return the baseline's first steps, taken once for all variants of one process."""
    plain = Subject(replace(workload, dtype="fp32"), seed, operation, device, operation.eager)
    trainer = Trainer(plain)
    losses = [trainer.loss_and_gradients().item()]
    gradients = {name: one.clone() for name, one in trainer.gradients().items()}
    trainer.update()
    losses += [trainer.step().item() for _ in range(1, STEPS)]
    return BaselineSteps(tuple(losses), gradients)


def check_loss(subject: Subject, index: int, ours: float, expected: BaselineSteps) -> float:
    """Return how far a loss is off, relative to the first loss."""
    theirs = expected.losses[index]
    off = abs(ours - theirs) / expected.losses[0]
    if not off <= subject.tolerance:
        raise WrongResult(
            f"loss of step {index} is {ours:.6f}, the baseline's {theirs:.6f}: off by {off:.2e} of the "
            f"first, allowed {subject.tolerance:.0e}"
        )
    return off


def check_gradient(subject: Subject, name: str, ours: Tensor | None, expected: Tensor) -> float:
    """Return how far a parameter's gradient is off: |ours - theirs| over |theirs|, Euclidean norms."""
    if ours is None:
        raise WrongResult(f"{name} has no gradient; training_step")
    allowed = BF16_GRADIENT if subject.precision == "bf16" else GRADIENT_FACTOR * subject.tolerance
    off = float((ours - expected).norm() / expected.norm())
    if not off <= allowed:
        raise WrongResult(
            f"gradient of {name} {list(expected.shape)} is off by {off:.2e} of its norm, allowed "
            f"{allowed:.0e}; training_step"
        )
    return off
