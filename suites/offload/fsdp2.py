"""torch's FSDP2: parameters, gradients and states in shards over ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.offload.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """It comes with torch."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject under that strategy."""
    return replace(subject, plan=replace(subject.plan, engine="fsdp2"))
