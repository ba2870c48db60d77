"""Enhanced ECMP: messages split over several connections, and the hash sees which (Meta, SIGCOMM 2024)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.fabric.subject import Plan, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`queue_pairs`: connections of a pair of ranks."""

    queue_pairs: int


def unavailable(host: HostInfo) -> str | None:
    """The network says itself what is missing."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject, its messages split, each part with a way of its own."""
    return replace(subject, plan=Plan(ports=True, queue_pairs=settings.queue_pairs))
