"""More communication behind computation: DDP's buckets made small, FSDP2's gathers begun a block ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo, Unavailable
from suites.interconnect.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`buckets`: DDP's, of a model."""

    buckets: int


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever the strategies do."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject with more overlap; `Unavailable` for deepspeed, whose engine prefetches as it comes."""
    if subject.plan.strategy == "zero3":
        raise Unavailable("deepspeed's engine gathers ahead and reduces in buckets as it comes")
    return replace(subject, plan=replace(subject.plan, buckets=settings.buckets, forward_prefetch=True))
