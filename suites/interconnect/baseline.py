"""The workload's strategy as it comes, over 10 Gbit/s Ethernet: what the paper starts from."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.interconnect.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """The network says itself what is missing."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject as the suite builds it."""
    return subject
