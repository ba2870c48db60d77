"""Queue-pair scaling alone: messages split over connections that a hash of addresses cannot tell apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.fabric.subject import Plan, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`queue_pairs`: connections per pair of ranks."""

    queue_pairs: int


def unavailable(host: HostInfo) -> str | None:
    """Return None: the network reports what is missing."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with split messages."""
    return replace(subject, plan=Plan(queue_pairs=settings.queue_pairs))
