"""Central traffic engineering: routes computed from the traffic matrix, the heaviest pair of NICs first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.fabric.subject import Plan, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """No settings."""


def unavailable(host: HostInfo) -> str | None:
    """Return None: the network reports what is missing."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with computed routes."""
    return replace(subject, plan=Plan("central"))
