"""Tensor parallelism, mixed precision, flash attention, full checkpointing: Megatron-LM's usual rank."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import HostInfo
from suites.memory import mixed_checkpointed, tensor_parallel
from suites.memory.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Settings:
    """`ranks`: over how many ranks, None: the workload's `tp_size`."""

    ranks: int | None = None


def unavailable(host: HostInfo) -> str | None:
    """Why it cannot run here; None where it can."""
    return mixed_checkpointed.unavailable(host) or tensor_parallel.unavailable(host)


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """`mixed_checkpointed`, then every matrix cut."""
    subject = mixed_checkpointed.apply(subject, mixed_checkpointed.Settings())
    return tensor_parallel.apply(subject, tensor_parallel.Settings(settings.ranks))
