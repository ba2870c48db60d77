"""The ranks that all variants of a workload share, one thread each; on GPUs over NCCL, else over gloo.

What a variant of the fsdp_versions suite is: a sharded training step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.records import Unavailable
from suites.fsdp_versions import on_rank
from suites.fsdp_versions.workload import Workload
from suites.training import on_rank as training_on_rank
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, build_step, strategy_of

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


def shared_techniques(workload: Workload) -> Techniques:
    """Return the techniques that plain PyTorch has too where a variant is compared with it."""
    chosen: list[str | dict[str, dict[str, str]]] = [{"attention": {"kernel": "flash"}}]
    if workload.precision == "bf16":
        chosen.append("mixed_precision")
    if workload.checkpointing:
        chosen.append("activation_checkpointing")
    return chosen


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a training step under FSDP1 or FSDP2."""

    workload: Workload
    step: TrainingStep

    @property
    def version(self) -> str:
        """Return "fsdp1" or "fsdp2"."""
        return str(strategy_of(self.step))

    def with_step(self, step: TrainingStep) -> Subject:
        """Return the subject with another training step."""
        return replace(self, step=step)


def baseline(workload: Workload, seed: int) -> Subject:
    """Return the step under FSDP1, whose units are the layers."""
    techniques = [*shared_techniques(workload), "fsdp1"]
    return Subject(workload, build_step(workload.training, techniques, seed))
