"""FSDP2 over the workload's link: all states sharded over all GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.interconnect_formula.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """No settings."""


def unavailable(host: HostInfo) -> str | None:
    """Return None: a formula runs everywhere."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject as the suite builds it."""
    return subject
