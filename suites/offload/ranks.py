"""The ranks of one cell: processes on this machine, started when first called, anew after one failed."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import Any

import torch

from harness.instruments.distributed.rank_pool import Place, Pool
from harness.instruments.memory.private_memory import EXACT, SMALL_STACKS
from harness.records import Unavailable
from suites.offload import on_rank, swap_folder
from suites.offload.subject import Plan, Workload

TIMEOUT_S = 300.0

COMPILE_S = 1200.0
"""What deepspeed compiles, it compiles once a machine, at the first use."""


class Ranks:
    """`exact`: whether private memory is to follow what lives in it closely, which costs time."""

    def __init__(self, workload: Workload, seed: int, exact: bool = False) -> None:
        self.workload, self.seed = workload, seed
        self._exact = exact
        self._pool: Pool | None = None
        self._folder = ""

    def call(self, function: str, workload: Workload, plan: Plan, **arguments: Any) -> list[Any]:
        """What `function` of `on_rank` returned on each rank."""
        if self._pool is None or len(self._pool) == 0:
            self.close()
            self._folder = swap_folder.make(self.workload.folder)
            self._pool = self._start()
            self._pool.call(f"{on_rank.__name__}:compiled", COMPILE_S, plan=asdict(plan))
        workload = replace(workload, folder=self._folder)
        given = {"workload": asdict(workload), "plan": asdict(plan), "seed": self.seed}
        return self._pool.call(f"{on_rank.__name__}:{function}", **given, **arguments)

    def close(self) -> None:
        """End the processes, and remove their files; the next call starts others."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._folder:
            swap_folder.remove(self._folder)
            self._folder = ""

    def _start(self) -> Pool:
        count = self.workload.ranks
        backend = backend_of(count)
        threads = str(max(len(os.sched_getaffinity(0)) // count, 1))
        common = {"OMP_NUM_THREADS": threads, **(EXACT if self._exact else {})}
        command = SMALL_STACKS if self._exact else ()
        places = [Place(command, {**common, "LOCAL_RANK": str(number)}) for number in range(count)]
        return Pool(places, "127.0.0.1", backend, TIMEOUT_S)


def backend_of(ranks: int) -> str:
    """NCCL where each rank has a GPU, gloo where there is none. Raises `Unavailable` for too few GPUs."""
    seen = torch.cuda.device_count()
    if seen == 0:
        return "gloo"
    if seen < ranks:
        raise Unavailable(f"{ranks} ranks need a GPU each, and there are {seen}")
    return "nccl"
