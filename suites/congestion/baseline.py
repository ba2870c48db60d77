"""PFC only: senders at line rate, paused hop by hop, as Meta ran at 400 Gbit/s."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.congestion.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """No settings: PFC's thresholds belong to the switch, and so to the workload."""


def unavailable(host: HostInfo) -> str | None:
    """Return None: it runs everywhere."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject as the suite builds it."""
    return subject
