"""ZeRO stage 3 (arXiv 1910.02054) by deepspeed's own engine.

Spread over the ranks: optimizer states, gradients and parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.memory import deepspeed_engine
from suites.memory.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Settings:
    """`ranks`: over how many ranks, None: as the workload says."""

    ranks: int | None = None


def unavailable(host: HostInfo) -> str | None:
    """Why it cannot run here; None where it can."""
    return deepspeed_engine.unavailable(host)


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """The step as one of the ranks takes it."""
    return deepspeed_engine.sharded(subject, 3, settings.ranks)
