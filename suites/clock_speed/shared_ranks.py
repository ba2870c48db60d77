"""The ranks that all variants of a workload share, one thread each on the CPU, with a quota for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from suites.clock_speed import on_rank
from suites.clock_speed.imposed_speed import ImposedSpeeds
from suites.clock_speed.speed_model import Dwell
from suites.clock_speed.workload import Workload
from suites.training.ranks import on_rank as training_on_rank

ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

Instants = Sequence[Mapping[str, Sequence[float]]]


class PacedRanks:
    """A pool with a speed for each rank, and the variants that have trainers on it."""

    def __init__(self, workload: Workload) -> None:
        self.variants: set[str] = set()
        self.pool = RankPool([RankLocation((), ALONE)] * workload.dp_size, "127.0.0.1")
        try:
            self.speeds = ImposedSpeeds(self.pool.pids, workload.core_share, workload.quota_period_s)
        except BaseException:
            self.pool.close()
            raise

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Return what `function` of this suite's `on_rank`, or of training's, returned on each rank."""
        module = on_rank if hasattr(on_rank, function) else training_on_rank
        return self.pool.call(f"{module.__name__}:{function}", **arguments)

    def paced(
        self, key: str, count: int, dwells: Iterator[tuple[float, ...]], dwell_s: float
    ) -> tuple[Instants, list[Dwell]]:
        """Run updates at imposed speeds; return their instants on each rank, and what was imposed."""
        with self.speeds.following(dwells, dwell_s) as imposed:
            instants = self.call("instants", key=key, count=count)
        return instants, imposed

    def leave(self, key: str) -> None:
        """Release a variant's trainer, if it has one; with the last of them the ranks end."""
        if key in self.variants:
            self.variants.remove(key)
            if len(self.pool):
                self.call("drop", key=key)
        if not self.variants:
            self.speeds.close()
            self.pool.close()
            shared.cache_clear()


@lru_cache(maxsize=1)
def shared(workload: Workload) -> PacedRanks:
    """Return the ranks of all variants of a workload."""
    return PacedRanks(workload)
