"""The ranks that a workload's variants share, on this or other machines, and their trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.instruments.distributed.rank_pool import RankPool
from suites.interconnect import on_rank
from suites.training.ranks import on_rank as training_on_rank
from suites.training.step import TrainingStep


class TrainingCluster:
    """A pool, and the variants that have trainers on it; `close` ends the pool."""

    def __init__(self, pool: RankPool) -> None:
        self.pool = pool
        self.variants: set[str] = set()
        self._known: dict[str, float] = {}
        self.call("use_ring")

    def close(self) -> None:
        """End the ranks."""
        self.pool.close()

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Return what `function` of this suite's `on_rank`, or of training's, returned on each rank."""
        module = on_rank if hasattr(on_rank, function) else training_on_rank
        return self.pool.call(f"{module.__name__}:{function}", **arguments)

    def enter(self, key: str, step: TrainingStep) -> None:
        """Create a variant's trainers, which last until it leaves."""
        self.variants.add(key)
        self.call("make", key=key, step=step.described)

    def leave(self, key: str | None) -> None:
        """Let a variant's trainers go, if it has any."""
        if key in self.variants:
            self.variants.remove(key)
            if len(self.pool):
                self.call("drop", key=key)

    @contextmanager
    def trainer(self, key: str, step: TrainingStep) -> Iterator[None]:
        """Create a trainer of that name on every rank, unless there is one."""
        self.call("make", key=key, step=step.described)
        try:
            yield
        finally:
            if len(self.pool):
                self.call("drop", key=key)

    def once(self, key: str, work: Callable[[], float]) -> float:
        """Return what `work` gave the first time, for variants that differ in their link alone."""
        if key not in self._known:
            self._known[key] = work()
        return self._known[key]
