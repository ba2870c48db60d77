"""Central traffic engineering: ways computed from the traffic matrix, the heaviest pair of NICs first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.fabric.subject import Plan, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """The network says itself what is missing."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject, its ways computed."""
    return replace(subject, plan=Plan("central"))
