"""AdamW's update (arXiv 1711.05101) as a part of the captured step, and by torch.optim.AdamW.

The step that is captured is the tenth: its first moments are zero, so that a tenth of each gradient can be
read from the new ones, and its second moments are small positive numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from suites.portability.capture.step_function import Forward, Problem
from suites.training.optimizers.adamw_settings import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY

STEP = 10
"""Number of the update, counted from 1."""

SECOND_MOMENT = 1e-6
"""Scale of the second moments before the update: that of a small model's squared gradients."""


def updated(
    parameter: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return parameter and moments after the update, as torch/optim/adam.py computes them."""
    exp_avg = exp_avg * BETAS[0] + gradient * (1 - BETAS[0])
    exp_avg_sq = exp_avg_sq * BETAS[1] + gradient * gradient * (1 - BETAS[1])
    denominator = exp_avg_sq.sqrt() / (1 - BETAS[1] ** STEP) ** 0.5 + EPSILON
    size = LEARNING_RATE / (1 - BETAS[0] ** STEP)
    return (
        parameter * (1 - LEARNING_RATE * WEIGHT_DECAY) - size * (exp_avg / denominator),
        exp_avg,
        exp_avg_sq,
    )


def with_update(differentiable: Problem, forward: Forward, generator: torch.Generator) -> Problem:
    """Return the step with its update: its outputs are the loss, then each parameter and its two moments."""
    count = differentiable.differentiated
    parameters = forward.inputs[:count]
    exp_avgs = tuple(torch.zeros_like(one) for one in parameters)
    exp_avg_sqs = tuple(
        ((torch.rand(one.shape, generator=generator) + 0.5) * SECOND_MOMENT).to(one.dtype)
        for one in parameters
    )

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        moments = arguments[len(arguments) - 2 * count :]
        loss, *gradients = differentiable.function(*arguments[: len(arguments) - 2 * count])
        groups = zip(arguments[:count], gradients, moments[:count], moments[count:], strict=True)
        new = [updated(*one) for one in groups]
        return (loss, *(tensor for group in zip(*new, strict=True) for tensor in group))

    kinds = ("parameter", "first_moment", "second_moment")
    names = ("output", *(f"{kind} {name}" for kind in kinds for name in forward.names))
    inputs = (*differentiable.inputs, *exp_avgs, *exp_avg_sqs)

    def plain() -> Callable[[], Sequence[Tensor]]:
        return plain_step(forward, count, exp_avgs, exp_avg_sqs)

    return Problem(function, inputs, names, count, plain, forward)


def plain_step(
    forward: Forward, count: int, exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor]
) -> Callable[[], Sequence[Tensor]]:
    """Return a call that makes one step of torch.optim.AdamW in place, on copies of its own."""
    parameters = [one.clone().requires_grad_() for one in forward.inputs[:count]]
    optimizer = torch.optim.AdamW(
        parameters, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY
    )
    states = []
    for parameter, exp_avg, exp_avg_sq in zip(parameters, exp_avgs, exp_avg_sqs, strict=True):
        step = torch.tensor(float(STEP - 1))
        states.append({"step": step, "exp_avg": exp_avg.clone(), "exp_avg_sq": exp_avg_sq.clone()})
        optimizer.state[parameter] = states[-1]

    def call() -> Sequence[Tensor]:
        loss = forward.function(*parameters, *forward.inputs[count:])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        moments = [one[key] for key in ("exp_avg", "exp_avg_sq") for one in states]
        return [loss.detach(), *(one.detach() for one in parameters), *moments]

    return call
