"""Local steps with an outer one, as in DiLoCo (arXiv 2311.08105): each rank trains alone, and now and then
they average how far they went, and take that as the gradient of an outer step with Nesterov momentum.

It changes the mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from harness.records import HostInfo, Unavailable
from suites.interconnect.subject import Subject

MOMENTUM = 0.9  # arXiv 2311.08105, section 3


@dataclass(frozen=True, slots=True)
class Settings:
    """`inner_steps`: updates between two outer steps; `outer_rate`: the outer step's learning rate."""

    inner_steps: int
    outer_rate: float


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever torch.distributed does."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject with local steps; `Unavailable` where a rank has no whole model."""
    if subject.plan.strategy != "ddp":
        raise Unavailable(
            "a rank that trains alone for a while needs all parameters: DDP has them, shards do not"
        )
    changes = (*subject.plan.changes, (__name__, asdict(settings)))
    return replace(
        subject,
        plan=replace(subject.plan, strategy="local", changes=changes),
        tolerance=None,
        updates_together=settings.inner_steps,
    )


def on_rank(trainer: Any, settings: Mapping[str, Any]) -> None:
    """Take an outer step after every so many updates."""
    trainer.after_update.append(Outer(trainer, settings["inner_steps"], settings["outer_rate"]))


class Outer:
    """The parameters that all ranks left from, and the outer optimizer over them."""

    def __init__(self, trainer: Any, inner_steps: int, outer_rate: float) -> None:
        self._inner_steps, self._updates = inner_steps, 0
        self._local = list(trainer.strategy.plain.parameters())
        self._common = [one.detach().clone().requires_grad_() for one in self._local]
        self._optimizer = torch.optim.SGD(self._common, lr=outer_rate, momentum=MOMENTUM, nesterov=True)

    @torch.no_grad()
    def __call__(self, trainer: Any) -> None:
        """Count an update; average and take the outer step where it is due."""
        self._updates += 1
        if self._updates % self._inner_steps:
            return
        away = torch.cat([(c - x).flatten() for c, x in zip(self._common, self._local, strict=True)])
        dist.all_reduce(away)
        away /= trainer.world
        for common, part in zip(
            self._common, torch.split(away, [c.numel() for c in self._common]), strict=True
        ):
            common.grad = part.view_as(common)
        self._optimizer.step()
        for common, local in zip(self._common, self._local, strict=True):
            local.copy_(common)
