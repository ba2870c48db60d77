"""A static way by destination: the number of the host in its rack says by which spine it is reached."""

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
    """The subject, its ways pinned."""
    return replace(subject, plan=Plan("pinned"))
