"""torch's FSDP2 with CPUOffloadPolicy: shards, gradients and states on the host."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.offload.subject import HOST, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """It comes with torch."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject under that strategy."""
    return replace(subject, plan=replace(subject.plan, engine="fsdp2", optimizer=HOST, parameters=HOST))
