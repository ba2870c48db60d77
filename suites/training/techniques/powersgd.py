"""PowerSGD (arXiv 1905.13727): gradients as products of low-rank matrices, with error feedback.

It is torch's communication hook for DDP, so it needs `ddp`, and with it one bucket: `ddp: {buckets: 1}`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from harness.records import Unavailable
from suites.training.declared import PowerSGDSettings
from suites.training.host_memory import Resources
from suites.training.step import CHANGES_THE_MATHEMATICS, Contract, TrainingStep


def contract(settings: PowerSGDSettings) -> Contract:
    """Return `CHANGES_THE_MATHEMATICS`: gradients are approximated."""
    return CHANGES_THE_MATHEMATICS


def apply(step: TrainingStep, settings: PowerSGDSettings) -> TrainingStep:
    """Return the step with the hook.

    All gradients must be in one bucket: the hook's second reduction begins on a thread of the process
    group, and ranks would take those of several buckets in different orders.
    """
    ddp = step.settings_of("ddp") or {}
    if ddp.get("reduce_dtype") == "bf16":
        raise Unavailable("powersgd is DDP's communication hook, and so is ddp: {reduce_dtype: bf16}")
    if ddp.get("buckets") != 1:
        raise Unavailable("powersgd needs ddp: {buckets: 1}, else ranks reduce buckets in different orders")
    return replace(
        step,
        wraps=(*step.wraps, partial(register, settings)),
        settling_updates=settings.warmup_steps + 1,
        no_dry_run="communication hooks of DDP run in its reducer, which fake tensors cannot run",
    )


def register(settings: PowerSGDSettings, model: Any, resources: Resources) -> nn.Module:
    """Register the hook with DDP."""
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=settings.rank,
        start_powerSGD_iter=settings.warmup_steps,
        min_compression_rate=1,
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model  # type: ignore[no-any-return]
