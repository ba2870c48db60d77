"""The optimizer as torch runs it on CUDA unless told otherwise: many tensors at once, copies of all of them.

torch.optim says of `foreach` that it uses about as much more memory as the parameters take. An optimization
of speed, which memory pays for; `fused` holds no such copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.memory.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """Why it cannot run here; None where it can."""
    return None


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """The step with `foreach=True`."""
    return replace(subject, workload=replace(subject.workload, optimizer_impl="foreach"))
