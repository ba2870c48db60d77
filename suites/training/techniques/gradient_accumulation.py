"""Gradient accumulation: several micro-batches per update, whose gradients are summed before it. Under `ddp`
gradients are reduced with the last micro-batch; under `fsdp2` see `reduce_every_micro_batch`.
"""

from __future__ import annotations

from dataclasses import replace

from suites.training.declared import GradientAccumulationSettings
from suites.training.step import TrainingStep
from suites.training.workload import Workload


def applies_to(workload: Workload, settings: GradientAccumulationSettings) -> str | None:
    """Return why these sequences cannot be split; None where they can."""
    if settings.split and workload.micro_batch_size % settings.steps:
        return f"{settings.steps} micro-batches cannot share micro_batch_size={workload.micro_batch_size}"
    return None


def apply(step: TrainingStep, settings: GradientAccumulationSettings) -> TrainingStep:
    """Return the step with that many micro-batches per update."""
    workload = step.workload
    share, added = (settings.steps, 1) if settings.split else (1, settings.steps)
    changed = replace(
        workload,
        micro_batch_size=workload.micro_batch_size // share,
        gradient_accumulation_steps=workload.gradient_accumulation_steps * settings.steps,
    )
    return replace(step, workload=changed, batches_per_update=step.batches_per_update * added)
