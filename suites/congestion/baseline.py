"""PFC only: senders at line rate, held back hop by hop; what Meta ran at 400 Gbit/s."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.congestion.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set: PFC's thresholds are the switch's, and so the workload's."""


def unavailable(host: HostInfo) -> str | None:
    """Runs everywhere."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject as the suite builds it."""
    return subject
