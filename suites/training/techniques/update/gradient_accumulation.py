"""Gradient accumulation: several micro-batches per update, whose gradients are summed before it.

What it does not combine with follows from `ROLE` and `EXCLUDES` of either module, and from what `applies_to`
and `apply` refuse. Under `ddp` gradients are reduced with the last micro-batch; under `fsdp2` see
`reduce_every_micro_batch`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from harness.bounds import Bounds
from suites.training.contract import EXACT, Contract
from suites.training.roles import Level
from suites.training.step import TrainingStep
from suites.training.workload import Workload

LEVEL = Level.WORKLOAD


@dataclass(frozen=True, slots=True)
class Settings:
    """How many micro-batches, and of which sequences.

    `steps`: micro-batches per update for each micro-batch of the workload.
    `split`: whether they share the workload's sequences, so that the update stays the same; else each is an
    additional batch, and there are fewer updates per token.
    """

    steps: Annotated[int, Bounds(at_least=1)] = 2
    split: bool = True


def contract(settings: Settings) -> Contract:
    """Return `EXACT`: the mean over micro-batches is the mean over their sequences, which have one length."""
    return EXACT


def applies_to(workload: Workload, settings: Settings) -> str | None:
    """Return why these sequences cannot be split; None where they can."""
    if settings.split and workload.micro_batch_size % settings.steps:
        return f"{settings.steps} micro-batches cannot share micro_batch_size={workload.micro_batch_size}"
    return None


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return the step with that many micro-batches per update."""
    workload = step.workload
    share, added = (settings.steps, 1) if settings.split else (1, settings.steps)
    changed = replace(
        workload,
        micro_batch_size=workload.micro_batch_size // share,
        gradient_accumulation_steps=workload.gradient_accumulation_steps * settings.steps,
    )
    return replace(step, workload=changed, batches_per_update=step.batches_per_update * added)
