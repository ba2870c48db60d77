"""One connection a pair of ranks, and a spine for it by a hash of both addresses: what RoCE began with."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.fabric.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """The network says itself what is missing."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject as the suite builds it."""
    return subject
