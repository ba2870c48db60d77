"""deepspeed's ZeRO stage 3 with the optimizer on the host (ZeRO-Offload)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.instruments.distributed.deepspeed_ops import missing
from harness.records import HostInfo
from suites.offload.subject import HOST, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """deepspeed with its own Adam, which is compiled here."""
    return missing("cpu_adam")


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject under that strategy."""
    return replace(subject, plan=replace(subject.plan, engine="deepspeed", stage=3, optimizer=HOST))
