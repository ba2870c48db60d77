"""torch.optim.AdamW's for-loop: a dozen passes over each tensor, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.host_optimizer.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """No settings."""


def unavailable(host: HostInfo) -> str | None:
    """Return None: it runs everywhere."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject as the suite builds it."""
    return subject
