"""What users really run: FSDP2 in bf16 over fp32 shards, flash attention, every block recomputed."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.memory import fsdp2, mixed_checkpointed
from suites.memory.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Settings:
    """`ranks`: over how many ranks, None: as the workload says."""

    ranks: int | None = None


def unavailable(host: HostInfo) -> str | None:
    """Why it cannot run here; None where it can."""
    return mixed_checkpointed.unavailable(host) or fsdp2.unavailable(host)


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """`mixed_checkpointed`, then shards; FSDP2's own mixed precision takes the place of autocast."""
    subject = mixed_checkpointed.apply(subject, mixed_checkpointed.Settings())
    return fsdp2.apply(subject, fsdp2.Settings(settings.ranks))
