"""The ranks that a workload's variants share in one process, and what any of them can do, wherever they
are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from harness.instruments.distributed.rank_pool import Pool
from suites.interconnect import on_rank
from suites.interconnect.subject import Plan, Workload


class Trainers:
    """A pool, and the variants that have trainers on it; `close` ends the pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.variants: set[str] = set()
        self._known: dict[tuple[Any, ...], float] = {}

    def close(self) -> None:
        """End the ranks."""
        self.pool.close()

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """What `function` of `on_rank` returned on each rank."""
        return self.pool.call(f"{on_rank.__name__}:{function}", **arguments)

    def enter(self, key: str, workload: Workload, plan: Plan, seed: int) -> None:
        """Make a variant's trainers, which last until it leaves."""
        self.variants.add(key)
        self.call("make", **made(key, workload, plan, seed))

    def leave(self, key: str | None) -> None:
        """Let a variant's trainers go, if it has any."""
        if key in self.variants:
            self.variants.remove(key)
            if len(self.pool):
                self.call("drop", key=key)

    @contextmanager
    def trainer(self, key: str, workload: Workload, plan: Plan, seed: int) -> Iterator[None]:
        """A trainer of that name on every rank."""
        self.call("make", **made(key, workload, plan, seed))
        try:
            yield
        finally:
            if len(self.pool):
                self.call("drop", key=key)

    def once(self, key: tuple[Any, ...], work: Callable[[], float]) -> float:
        """What `work` gave the first time, for variants that differ in their link alone."""
        if key not in self._known:
            self._known[key] = work()
        return self._known[key]


def made(key: str, workload: Workload, plan: Plan, seed: int) -> dict[str, Any]:
    """The arguments of `on_rank.make`."""
    return {"key": key, "workload": asdict(workload), "plan": asdict(plan), "seed": seed}
