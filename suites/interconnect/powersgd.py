"""PowerSGD (arXiv 1905.13727): gradients as products of thin matrices, the error kept for the next step.

torch's communication hook for DDP. It changes the mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from harness.records import HostInfo, Unavailable
from suites.interconnect.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`rank`: columns of the thin matrices. `warmup_steps`: updates before it begins."""

    rank: int
    warmup_steps: int


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever DDP does."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject with the hook; `Unavailable` where gradients are sharded.

    All gradients in one bucket: the hook's second reduction begins on a thread of gloo's, and ranks would
    take those of several buckets in different orders.
    """
    if subject.plan.strategy != "ddp":
        raise Unavailable("torch has PowerSGD as a hook of DDP alone: gradients must be whole")
    changes = (*subject.plan.changes, (__name__, asdict(settings)))
    return replace(subject, plan=replace(subject.plan, buckets=1, changes=changes), tolerance=None)


def on_rank(trainer: Any, settings: Mapping[str, Any]) -> None:
    """Register the hook."""
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=settings["rank"],
        start_powerSGD_iter=settings["warmup_steps"],
        min_compression_rate=1,
    )
    trainer.strategy.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
