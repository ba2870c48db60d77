"""deepspeed's Twin-Flow (ZeRO-Offload++): a share of the optimizer's states on the host."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.instruments.distributed.deepspeed_ops import missing
from harness.records import HostInfo
from suites.offload.subject import HOST, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`ratio`: the share of states on the host, from 0 to 1; rounded to whole groups of parameters."""

    ratio: float


def unavailable(host: HostInfo) -> str | None:
    """deepspeed with its own Adam, which is compiled here."""
    return missing("cpu_adam")


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject under that strategy."""
    plan = replace(subject.plan, engine="deepspeed", stage=3, optimizer=HOST, ratio=settings.ratio)
    return replace(subject, plan=plan)
