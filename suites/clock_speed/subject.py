"""What a variant of the clock_speed suite is: how fast each rank computes over time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from suites.clock_speed.workload import Workload
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, build_step

SHARED: Techniques = [{"attention": {"kernel": "flash"}}]
"""Techniques that plain PyTorch has too where a variant is compared with it."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast ranks compute: all at full speed, one slow, all at the mean, or each in turn slow and full.

    `dwell_s`: how long an alternating rank keeps a speed. `together`: all ranks alternate at once; else each
    by itself.
    """

    pattern: Literal["full", "one_slow", "steady", "alternating"] = "full"
    dwell_s: float = 0.0
    together: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: the same training step at other speeds."""

    workload: Workload
    seed: int
    step: TrainingStep
    speeds: Speeds = Speeds()

    def at(self, speeds: Speeds) -> Subject:
        """Return the subject at other speeds."""
        return replace(self, speeds=speeds)


def baseline(workload: Workload, seed: int) -> Subject:
    """Return the step with every rank at full speed; all gradients in one bucket."""
    return Subject(workload, seed, build_step(workload.training, [*SHARED, {"ddp": {"buckets": 1}}], seed))
