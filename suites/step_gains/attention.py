"""The same step without FlashAttention: attention from a score matrix in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from suites.step_gains.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`recompute`: none keeps the scores of all layers, selective computes them again."""

    recompute: Literal["none", "selective"]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the step with explicit attention; raises `Unavailable` with context parallelism."""
    layout = {**subject.workload.layout, "recompute": settings.recompute}
    return changed(subject, attention="explicit", layout=layout)
