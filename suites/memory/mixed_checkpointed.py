"""Mixed precision, flash attention and full activation checkpointing: the least that one device can hold."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.memory import activation_checkpointing, mixed_flash
from suites.memory.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """Why it cannot run here; None where it can."""
    return mixed_flash.unavailable(host) or activation_checkpointing.unavailable(host)


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """`mixed_flash`, then every block recomputed."""
    subject = mixed_flash.apply(subject, mixed_flash.Settings())
    return activation_checkpointing.apply(subject, activation_checkpointing.Settings("full"))
