"""What the memory suite asks about: a training step, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from harness.records import Json
from suites.training.step import TrainingStep
from suites.training.techniques import build_step
from suites.training.workload import Workload


@dataclass(frozen=True, slots=True)
class Subject:
    """A step with the workload's fields that say nothing about training.

    `device_memory_B`: of one device, for the counts of devices. `nominal_parameters`: the paper's "7B";
    None: the real count. `measurable`: small enough to be trained here. `simulated_device`: host | cuda,
    whose operations the dry run takes.
    """

    step: TrainingStep
    device_memory_B: float
    nominal_parameters: float | None = None
    measurable: bool = False
    simulated_device: str = "host"
    source: str = ""


def subject_of(workload: Json, seed: int) -> Subject:
    """Return the plain step of a workload; raises ValueError for a field that nothing has."""
    own = {one.name for one in fields(Subject)} - {"step"}
    trained = {one.name for one in fields(Workload)}
    unknown = sorted(set(workload) - own - trained)
    if unknown:
        raise ValueError(f"workload: no field {unknown[0]!r}")
    return Subject(build_step(workload, (), seed), **{k: v for k, v in workload.items() if k in own})
