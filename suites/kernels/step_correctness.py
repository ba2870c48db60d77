"""Compare a training step's gradients and losses with plain PyTorch's in fp32, at the workload's own size.

Every parameter's gradient of the first step, by the norm of the difference; then the losses of `STEPS` steps
on one batch, which check the optimizer. How close they must be is the step's contract, and they are compared
as everywhere (`suites.training.correctness`). A step that changes the mathematics must learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from harness.records import Unavailable
from suites.kernels.bound_call import Session, seconds_of
from suites.kernels.subject import Operation, Subject
from suites.kernels.training_step import FixedBatchTrainer, contract_of, has_experts, step_of
from suites.kernels.workload import Workload
from suites.training import correctness
from suites.training.correctness import (
    UPDATES,
    compare,
    compare_gradients,
    learns,
    require_learning,
    worst_gradient,
)
from suites.training.optimizers import share_states

STEPS = 3
"""Number of steps: one shows the gradients, two the updates; ten would take longer than the timing."""

FURTHER_UPDATES = 10 * UPDATES
"""Number of updates after which a step that has not learned in `UPDATES` does not learn."""


class BaselineSteps(NamedTuple):
    """Plain PyTorch's losses, and each parameter's gradient in the first step."""

    losses: tuple[float, ...]
    gradients: dict[str, Tensor]


def check_step(session: Session) -> None:
    """Raise `WrongResult` where a step breaks its contract; keep the largest error."""
    subject, trainer = session.subject, session.trainer
    contract = contract_of(subject)
    expected = baseline_steps(subject.operation, subject.workload, subject.seed, subject.device)
    losses = [session.first_call(trainer.loss_and_gradients).item()]
    worst, gradients = 0.0, "no gradients, as the step changes the mathematics"
    if contract.compared:
        worst, gradients = check_gradients(session, expected, contract.relative)
    assert session.first_call_s is not None
    session.first_call_s += seconds_of(trainer.update, subject.device)[0]
    losses += [trainer.step().item() for _ in range(1, STEPS)]
    session.max_error = max(worst, compare(losses, expected.losses, contract.relative))
    if not contract.compared:
        losses += [trainer.step().item() for _ in range(STEPS, UPDATES)]
        if not learns(losses):  # adapters begin as zeros: in bf16 their first updates change no loss
            losses += [trainer.step().item() for _ in range(UPDATES, FURTHER_UPDATES)]
            require_learning(losses)
    session.compared = f"{STEPS} losses and {gradients}, against plain fp32"
    if subject.workload.hf_config is not None:
        shared = shared_states(subject.workload, subject.seed, subject.device)
        share_states(trainer.model, trainer.optimizer, shared)


def check_gradients(session: Session, expected: BaselineSteps, relative: float) -> tuple[float, str]:
    """Return the largest error of a gradient, and what was compared; raises `WrongResult`.

    If the step releases its gradients, its techniques are checked by the losses of a small model.
    """
    try:
        gradients = session.trainer.gradients()
    except Unavailable:
        correctness.check(step_of(replace(session.subject, replace={})))
        return 0.0, "the losses of a small model, as gradients are released in the backward pass"
    off, name, compared = compared_gradients(session.subject, gradients, expected.gradients)
    return compare_gradients(off, name, relative), compared


def compared_gradients(
    subject: Subject, ours: Mapping[str, Tensor], plain: Mapping[str, Tensor]
) -> tuple[float, str, str]:
    """Return the largest error of a gradient, of which parameter, and what was compared.

    In bf16 the gradients of a config's model are compared all together: where an activation has a kink, a
    rounding changes small ones by more than their own tolerance. With experts no gradient is compared.
    """
    every = "every gradient of the first step"
    if subject.workload.hf_config is None or subject.precision != "bf16":
        return *worst_gradient(ours, plain), every
    if has_experts(subject.workload):
        return 0.0, "", "no gradients, as a rounding to bf16 sends tokens to other experts"
    off = math.hypot(*(float((ours[name].float() - one).norm()) for name, one in plain.items()))
    whole = math.hypot(*(float(one.norm()) for one in plain.values()))
    return off / whole, "all parameters together", "all gradients of the first step together"


@lru_cache(maxsize=1)
def shared_states(workload: Workload, seed: int, device: torch.device) -> dict[tuple[str, str], Tensor]:
    """Return the states that variants of one process share after their checks; at first none."""
    return {}


@lru_cache(maxsize=1)
def baseline_steps(
    operation: Operation, workload: Workload, seed: int, device: torch.device
) -> BaselineSteps:
    """Return the baseline's first steps, taken once for all variants of one process."""
    plain = Subject(replace(workload, dtype="fp32"), seed, operation, device, operation.eager)
    trainer = FixedBatchTrainer(plain)
    losses = [trainer.loss_and_gradients().item()]
    gradients = {name: one.clone() for name, one in trainer.gradients().items()}
    trainer.update()
    losses += [trainer.step().item() for _ in range(1, STEPS)]
    return BaselineSteps(tuple(losses), gradients)
