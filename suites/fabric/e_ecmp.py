"""E-ECMP: messages split over several connections that the hash tells apart (Meta, SIGCOMM 2024)."""

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
    """Return the subject with split messages, each part routed by itself."""
    return replace(subject, plan=Plan(ports=True, queue_pairs=settings.queue_pairs))
