"""ECMP: one connection per pair of ranks, and its spine by a hash of both addresses, as RoCE began."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.fabric.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """No settings."""


def unavailable(host: HostInfo) -> str | None:
    """Return None: the network reports what is missing."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject as the suite builds it."""
    return subject
