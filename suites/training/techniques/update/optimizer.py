"""Another optimizer, or another implementation of the same one.

`foreach` is torch's default on CUDA: many tensors at once, and copies of all of them, which take about as
much memory as the parameters (torch.optim's documentation). `fused` reads and writes each tensor once, in
one kernel.

What it does not combine with follows from `ROLE` and `EXCLUDES` of either module, and from what `applies_to`
and `apply` refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from harness.bounds import Bounds
from suites.training.contract import CHANGES_THE_MATHEMATICS, EXACT, Contract
from suites.training.optimizers.optimizers import LEARNING_RATE, ONE_IMPLEMENTATION
from suites.training.roles import Level
from suites.training.step import TrainingStep
from suites.training.workload import Workload

LEVEL = Level.WORKLOAD

PAGED = (
    "paged states are in unified memory, and the driver decides at run time which of them are on the device; "
    "adamw_8bit has the same states on the device"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose what updates the parameters.

    `impl`: torch's implementation; None: the workload's.
    `name`: the optimizer; None: the workload's. "adamw_8bit" has 8-bit moments (arXiv 2110.02861), "muon" is
    torch's Muon for the layers' matrices and AdamW for all else.
    `learning_rate`: its learning rate; None: with `name` that optimizer's default, else the workload's.
    """

    impl: Literal["default", "for_loop", "foreach", "fused"] | None = None
    name: Literal["adamw", "sgd_momentum", "adafactor", "adamw_8bit", "muon", "paged_adamw_8bit"] | None = (
        None
    )
    learning_rate: Annotated[float, Bounds(above=0)] | None = None


def contract(settings: Settings) -> Contract:
    """Return `EXACT` for another implementation; another optimizer changes the mathematics."""
    changed = settings.name is not None or settings.learning_rate is not None
    return CHANGES_THE_MATHEMATICS if changed else EXACT


def applies_to(workload: Workload, settings: Settings) -> str | None:
    """Return why torch has no such optimizer; None where it has."""
    name = settings.name or workload.optimizer
    if name == "adafactor" and settings.impl == "fused":
        return "torch has no fused Adafactor"
    if name in ONE_IMPLEMENTATION and settings.impl is not None:
        return f"{name} has one implementation; leave out impl={settings.impl}"
    return PAGED if name == "paged_adamw_8bit" else None


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return the step with that optimizer."""
    workload = step.workload
    rate = settings.learning_rate
    if rate is None:
        rate = workload.learning_rate if settings.name is None else LEARNING_RATE[settings.name]
    name, impl = settings.name or workload.optimizer, settings.impl or workload.optimizer_impl
    notes = step.notes
    if name == "adafactor" and impl == "fused":
        impl, notes = "for_loop", (*notes, "torch has no fused Adafactor: its for-loop takes the place")
    changed = replace(workload, optimizer=name, optimizer_impl=impl, learning_rate=rate)
    return replace(step, workload=changed, notes=notes)
