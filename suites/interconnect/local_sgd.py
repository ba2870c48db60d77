"""Local steps with an outer one (DiLoCo): the technique `local_sgd` in place of DDP."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from harness.records import Unavailable
from suites.interconnect.subject import SHARED, Subject
from suites.training.techniques import build_step


@dataclass(frozen=True, slots=True)
class Settings:
    """`inner_steps`: updates between two outer steps. `outer_learning_rate`: of the outer step."""

    inner_steps: int
    outer_learning_rate: float


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with local steps; raises `Unavailable` where a rank has no full model."""
    if subject.workload.strategy != "ddp":
        raise Unavailable("local steps need every parameter on every rank: strategy=ddp")
    techniques = [*SHARED, {"local_sgd": asdict(settings)}]
    return subject.with_step(build_step(subject.workload.training, techniques, subject.seed))
