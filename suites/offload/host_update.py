"""ZeRO-Offload's cut written out plainly, so that the least traffic can be counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.offload.subject import HOST, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """torch alone."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject under that strategy."""
    return replace(subject, plan=replace(subject.plan, engine="host_update", optimizer=HOST))
