"""Attention without its score matrix (arXiv 2205.14135): torch's scaled_dot_product_attention, its fused
kernel.

The baseline holds scores, masked scores, weights and dropped weights of (batch, heads, seq_len, seq_len) a
layer; the fused kernel holds its output and one number a row, and computes the scores again in the backward
pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.memory.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set: torch chooses the kernel."""


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever torch does: the CPU and CUDA both have a fused kernel."""
    return None


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """The step with `F.scaled_dot_product_attention` in every layer."""
    return replace(subject, attention="sdpa", features=replace(subject.features, attention="sdpa"))
