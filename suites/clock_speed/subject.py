"""The clock_speed suite's types: a workload, and how fast each rank computes over time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from suites.training import workload as training
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, build_step
from suites.training.workload import TextVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(training.StepWorkload):
    """A training step under DDP, whose ranks' speeds are imposed."""

    vocab_size: TextVocabulary
    dp_size: Annotated[int, Bounds(at_least=2)] = 4
    core_share: Annotated[float, Bounds(at_least=0.25, at_most=1)]  # of one core, at full speed
    slow: Annotated[float, Bounds(at_least=0.25, below=1)] = 0.8  # speed of a slow rank, full speed being 1
    quota_period_s: Annotated[float, Bounds(at_least=0.004, at_most=0.1)] = 0.005
    updates: PositiveInt = 24  # of a sample, at the imposed speeds
    reference_updates: PositiveInt = 8  # before them, at full speed
    source: str = ""

    @property
    def training(self) -> training.Workload:
        """Return the workload of `suites.training`."""
        return training.Workload.of(asdict(self))


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
