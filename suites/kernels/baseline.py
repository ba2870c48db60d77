"""Plain PyTorch: eager, explicit attention, fp32 unless the workload's inputs are bf16."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.kernels.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """Runs everywhere."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject as the suite builds it."""
    return subject
