"""Another optimizer, or another implementation of the same one.

`foreach` is torch's default on CUDA: many tensors at once, and copies of all of them, which take about as
much memory as the parameters (torch.optim's documentation). `fused` reads and writes each tensor once, in
one kernel.
"""

from __future__ import annotations

from dataclasses import replace

from suites.training.declared import OptimizerSettings
from suites.training.optimizers import LEARNING_RATES, ONE_IMPLEMENTATION
from suites.training.step import CHANGES_THE_MATHEMATICS, EXACT, Contract, TrainingStep
from suites.training.workload import Workload

PAGED = (
    "paged states are in unified memory, and the driver decides at run time which of them are on the device; "
    "adamw_8bit has the same states on the device"
)


def contract(settings: OptimizerSettings) -> Contract:
    """Return `EXACT` for another implementation; another optimizer changes the mathematics."""
    changed = settings.name is not None or settings.learning_rate is not None
    return CHANGES_THE_MATHEMATICS if changed else EXACT


def applies_to(workload: Workload, settings: OptimizerSettings) -> str | None:
    """Return why torch has no such optimizer; None where it has."""
    name = settings.name or workload.optimizer
    if name == "adafactor" and settings.impl == "fused":
        return "torch has no fused Adafactor"
    if name in ONE_IMPLEMENTATION and settings.impl is not None:
        return f"{name} has one implementation; leave out impl={settings.impl}"
    return PAGED if name == "paged_adamw_8bit" else None


def apply(step: TrainingStep, settings: OptimizerSettings) -> TrainingStep:
    """Return the step with that optimizer."""
    workload = step.workload
    rate = settings.learning_rate
    if rate is None:
        rate = workload.learning_rate if settings.name is None else LEARNING_RATES[settings.name]
    name, impl = settings.name or workload.optimizer, settings.impl or workload.optimizer_impl
    notes = step.notes
    if name == "adafactor" and impl == "fused":
        impl, notes = "for_loop", (*notes, "torch has no fused Adafactor: its for-loop takes the place")
    changed = replace(workload, optimizer=name, optimizer_impl=impl, learning_rate=rate)
    return replace(step, workload=changed, notes=notes)
