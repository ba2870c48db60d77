"""The profiling suite's types: a training step to record, and what is injected into it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.records import Unavailable
from suites.profiling.workload import Workload
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, apply_techniques, build_step

InjectionKind = Literal["data_wait", "launch_sleep", "competing_load", "cpu_quota", "slow_link"]


@dataclass(frozen=True, slots=True)
class Injection:
    """A known loss of time, in a rank or, of a link, between all.

    `seconds`: of each sleep. `every`: n, before each n-th launch of a linear layer. `share`: of one core
    that a competing load takes or that a quota leaves. `rate_B_per_s`: of the link, each way.
    """

    kind: InjectionKind
    rank: int
    seconds: float = 0.0
    every: int = 1
    share: float = 0.0
    rate_B_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a training step, and what is injected into it."""

    workload: Workload
    seed: int
    step: TrainingStep
    injection: Injection | None = None

    def with_techniques(self, techniques: Techniques) -> Subject:
        """Return the subject with the techniques of an optimization's list."""
        return replace(self, step=apply_techniques(self.step, techniques))

    def with_injection(self, rank: int | None = None, **fields: Any) -> Subject:
        """Return the subject with an injection into a rank, or the last; raises `Unavailable` without it."""
        count = self.workload.dp_size
        injection = Injection(rank=count - 1 if rank is None else rank, **fields)
        if injection.rank >= count:
            raise Unavailable(
                f"a loss cannot be injected into rank {injection.rank}: ranks are 0 to {count - 1}"
            )
        return replace(self, injection=injection)


def baseline(workload: Workload, seed: int) -> Subject:
    """Return the baseline's subject: the step with nothing injected."""
    return Subject(workload, seed, build_step(workload.training, workload.techniques, seed))
