"""Gradients in bf16 on the wire: torch's bf16_compress_hook for DDP, FSDP2's reduce_dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo, Unavailable
from suites.interconnect.subject import Subject

TOLERANCE = 1e-3
"""Of a loss: a gradient is off by 2^-9 of each element, and AdamW divides by its own size."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever the strategies do."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject with gradients reduced in bf16; `Unavailable` for deepspeed, run as it comes."""
    if subject.plan.strategy == "zero3":
        raise Unavailable("deepspeed's engine is run as it comes: gradients have the parameters' type")
    return replace(subject, plan=replace(subject.plan, reduce_dtype="bf16"), tolerance=TOLERANCE)
