"""A static route by destination: the number of the host in its rack decides its spine."""

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
    """Return the subject with pinned routes."""
    return replace(subject, plan=Plan("pinned"))
