"""Mixed precision with flash attention: what most training scripts begin with."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.memory import flash_attention, mixed_precision
from suites.memory.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """Why it cannot run here; None where it can."""
    return flash_attention.unavailable(host) or mixed_precision.unavailable(host)


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """Autocast to bf16, then SDPA."""
    subject = mixed_precision.apply(subject, mixed_precision.Settings("autocast"))
    return flash_attention.apply(subject, flash_attention.Settings())
