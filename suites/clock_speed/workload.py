"""A workload of the clock_speed suite: a training step under DDP whose ranks' speeds are imposed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from harness.bounds import Bounds, PositiveInt
from suites.training import workload as training
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
