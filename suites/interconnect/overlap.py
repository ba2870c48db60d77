"""More communication behind computation: smaller DDP buckets; FSDP2 gathers a block ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.bounds import PositiveInt
from harness.records import Unavailable

if TYPE_CHECKING:
    from suites.interconnect.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`buckets`: DDP buckets per model."""

    buckets: PositiveInt


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with more overlap; raises `Unavailable` for deepspeed."""
    from suites.training.techniques import apply_techniques

    strategy = subject.workload.strategy
    changes = {"ddp": {"buckets": settings.buckets}, "fsdp2": {"forward_prefetch": True}}
    if strategy not in changes:
        raise Unavailable("deepspeed already prefetches and reduces in buckets; use strategy ddp or fsdp2")
    return subject.with_step(apply_techniques(subject.step, [{strategy: changes[strategy]}]))
