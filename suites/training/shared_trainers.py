"""Ranks that all variants of a workload share, each with trainers of its own on them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from harness.instruments.distributed.rank_pool import RankPool
from harness.records import Unavailable
from suites.training import on_rank
from suites.training.step import TrainingStep


class SharedTrainers:
    """A pool, and the variants that have trainers on it; `own` has functions of the suite for ranks."""

    def __init__(self, pool: RankPool, own: ModuleType) -> None:
        self.pool, self._own = pool, own
        self.variants: set[str] = set()

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Return what a function of the suite's own for ranks, or of training's, returned on each rank."""
        module = self._own if hasattr(self._own, function) else on_rank
        return self.pool.call(f"{module.__name__}:{function}", **arguments)

    def enter(self, key: str, step: TrainingStep) -> None:
        """Create a variant's trainers, which last until it leaves."""
        self.variants.add(key)
        self.call("make", key=key, step=step.described)

    def leave(self, key: str | None) -> None:
        """Release a variant's trainers, if it has any."""
        if key in self.variants:
            self.variants.remove(key)
            if len(self.pool):
                self.call("drop", key=key)

    def close(self) -> None:
        """End the ranks."""
        self.pool.close()


def backend_of(ranks: int) -> str:
    """Return NCCL where each rank has a GPU, gloo where none is; raises `Unavailable` for too few GPUs."""
    seen = torch.cuda.device_count()
    if seen == 0:
        return "gloo"
    if seen < ranks:
        raise Unavailable(f"{ranks} ranks need a GPU each, and there are {seen}")
    return "nccl"
