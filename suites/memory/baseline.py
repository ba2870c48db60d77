"""The plain PyTorch way: fp32, explicit attention, one device, everything kept. The measure of the others."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.memory.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Settings:
    """The baseline has none."""


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever torch does."""
    return None


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """The step as it is."""
    return subject
