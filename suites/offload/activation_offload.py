"""Activation offload: what the backward pass will need waits on the host, not on the device.

The copies are made where computation waits for them, or beside it: see `suites.offload.activations`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.offload.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`ahead`: copies run beside the computation, one block behind it and one ahead."""

    ahead: bool = False


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever torch does."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The baseline with its blocks' activations on the host."""
    how = "offloaded_ahead" if settings.ahead else "offloaded"
    return replace(subject, plan=replace(subject.plan, activations=how))
