"""The ranks that all variants of a workload share, one thread each; on GPUs over NCCL, else over gloo."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.records import Unavailable
from suites.fsdp_versions import on_rank
from suites.fsdp_versions.workload import Workload
from suites.training.ranks import on_rank as training_on_rank

TIMEOUT_S = 300.0


class ShardingRanks:
    """A pool, and the variants that have trainers on it."""

    def __init__(self, ranks: int) -> None:
        self.backend = backend_of(ranks)
        self.variants: set[str] = set()
        places = [
            RankLocation((), {"OMP_NUM_THREADS": "1", "LOCAL_RANK": str(rank)}) for rank in range(ranks)
        ]
        self.pool = RankPool(places, "127.0.0.1", self.backend, TIMEOUT_S)
        self.call("use_ring")

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Return what `function` of this suite's `on_rank`, or of training's, returned on each rank."""
        module = on_rank if hasattr(on_rank, function) else training_on_rank
        return self.pool.call(f"{module.__name__}:{function}", **arguments)

    def leave(self, key: str) -> None:
        """Release a variant's trainer, if it has one; with the last of them the ranks end."""
        if key in self.variants:
            self.variants.remove(key)
            if len(self.pool):
                self.call("drop", key=key)
        if not self.variants:
            self.pool.close()
            shared.cache_clear()


@lru_cache(maxsize=1)
def shared(workload: Workload) -> ShardingRanks:
    """Return the ranks of all variants of a workload."""
    return ShardingRanks(workload.dp_size)


def backend_of(ranks: int) -> str:
    """Return NCCL where each rank has a GPU, gloo where there is none; raises `Unavailable` for too few."""
    seen = torch.cuda.device_count()
    if seen == 0:
        return "gloo"
    if seen < ranks:
        raise Unavailable(f"{ranks} ranks need a GPU each, and there are {seen}")
    return "nccl"
