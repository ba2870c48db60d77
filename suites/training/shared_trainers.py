"""Ranks that all variants of a workload share, each with trainers of its own on them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

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
        """Create a variant's trainers, which last until it leaves; it has left where that fails."""
        self.variants.add(key)
        try:
            self.ready()
            self.call("make", key=key, step=step.described)
        except BaseException:
            self.leave(key)
            raise

    def ready(self) -> None:
        """Prepare for a variant's trainers, where a suite has more than the ranks."""

    def leave(self, key: str) -> None:
        """Release a variant's trainers; with the last of them the ranks end."""
        self.variants.discard(key)
        if not self.variants:
            self.close()
        elif len(self.pool):
            self.call("drop", key=key)

    def close(self) -> None:
        """End the ranks: they are shared no more."""
        for key in [key for key, ranks in SHARED.items() if ranks is self]:
            del SHARED[key]
        self.pool.close()


SHARED: dict[tuple[Any, ...], Any] = {}
"""The ranks that are shared now, by what started them."""

T = TypeVar("T", bound=SharedTrainers)


def shared(start: Callable[..., T], *arguments: Any) -> T:
    """Return the ranks of all variants of a workload: those that are there, or `start(*arguments)`."""
    key = (start, *arguments)
    if key not in SHARED:
        SHARED[key] = start(*arguments)
    ranks: T = SHARED[key]
    return ranks


def backend_of(ranks: int) -> str:
    """Return NCCL where each rank has a GPU, gloo where none is; raises `Unavailable` for too few GPUs."""
    seen = torch.cuda.device_count()
    if seen == 0:
        return "gloo"
    if seen < ranks:
        raise Unavailable(f"{ranks} ranks need a GPU each, and there are {seen}")
    return "nccl"
