"""Gradients in bf16 on the wire: torch's bf16_compress_hook for DDP, FSDP2's reduce_dtype."""

from __future__ import annotations

from harness.records import Unavailable
from suites.interconnect.subject import Subject
from suites.training.techniques import apply_techniques


def apply(subject: Subject) -> Subject:
    """Return the subject with gradients reduced in bf16; raises `Unavailable` for deepspeed."""
    strategy = subject.workload.strategy
    if strategy == "zero3":
        raise Unavailable("deepspeed reduces gradients in the parameters' type; use strategy ddp or fsdp2")
    return subject.with_step(apply_techniques(subject.step, [{strategy: {"reduce_dtype": "bf16"}}]))
