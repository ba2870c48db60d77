"""ZeRO-Offload's delayed update: the host updates beside the next step, with gradients one step old."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.offload.subject import HOST, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`after`: steps that are ordinary, since early in training gradients change much from step to step."""

    after: int


def unavailable(host: HostInfo) -> str | None:
    """torch alone."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """`host_update`, delayed: it changes the mathematics."""
    plan = replace(subject.plan, engine="host_update", optimizer=HOST, delay=1, delay_after=settings.after)
    return replace(subject, plan=plan, tolerance=None)
