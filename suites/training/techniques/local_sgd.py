"""Local steps with an outer one, as in DiLoCo (arXiv 2311.08105).

Each rank trains alone. At intervals the ranks average their changes and use the average as the gradient of an
outer step with Nesterov momentum. It has the role of `ddp`. Every rank needs all parameters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from harness.records import Unavailable
from suites.training.declared import LocalSGDSettings
from suites.training.step import CHANGES_THE_MATHEMATICS, Contract, TrainingStep

MOMENTUM = 0.9  # arXiv 2311.08105, section 3


def contract(settings: LocalSGDSettings) -> Contract:
    """Return `CHANGES_THE_MATHEMATICS`: ranks differ between two outer steps."""
    return CHANGES_THE_MATHEMATICS


def apply(step: TrainingStep, settings: LocalSGDSettings) -> TrainingStep:
    """Return one of `dp_size` ranks' step, each with its own model.

    Raises `Unavailable` where updates write parameters anew from fp32 masters, which undoes the outer step.
    """
    if (step.settings_of("mixed_precision") or {}).get("gradients") is not None:
        raise Unavailable(
            "local_sgd changes parameters, which mixed_precision with gradients writes anew from masters; "
            "list mixed_precision without gradients, or bf16_states"
        )
    return replace(
        step,
        ranks=step.workload.dp_size,
        features=replace(step.features, sharding="ddp"),
        after_update=(*step.after_update, partial(OuterStep, settings)),
        updates_between_syncs=settings.inner_steps,
        settling_updates=settings.inner_steps,
        no_dry_run="the outer step's momentum is made with the first of them, which a dry run does not reach",
    )


class OuterStep:
    """Take the outer step over the parameters from which all ranks started."""

    def __init__(self, settings: LocalSGDSettings, trainer: Any) -> None:
        self._inner_steps, self._updates = settings.inner_steps, 0
        self._local = list(trainer.plain.parameters())
        self._common = [one.detach().clone().requires_grad_() for one in self._local]
        rate = settings.outer_learning_rate
        self._optimizer = torch.optim.SGD(self._common, lr=rate, momentum=MOMENTUM, nesterov=True)

    @torch.no_grad()
    def __call__(self, trainer: Any) -> None:
        """Count an update; average and take the outer step where it is due."""
        self._updates += 1
        if self._updates % self._inner_steps:
            return
        away = torch.cat([(c - x).flatten() for c, x in zip(self._common, self._local, strict=True)])
        dist.all_reduce(away)
        away /= dist.get_world_size()
        sizes = [one.numel() for one in self._common]
        for common, part in zip(self._common, torch.split(away, sizes), strict=True):
            common.grad = part.view_as(common)
        self._optimizer.step()
        for common, local in zip(self._common, self._local, strict=True):
            local.copy_(common)
