"""torch's DDP with AdamW, everything on the device: what Table II starts from."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.offload.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """It comes with torch."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject as the suite builds it."""
    return subject
