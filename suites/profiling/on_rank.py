"""The functions that a rank of the profiling suite runs, called by name.

See `harness.instruments.distributed.rank_pool`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from harness.instruments.distributed.rank_worker import RankState
from harness.instruments.distributed.ring_reduce_scatter import use_ring_reduce_scatter
from suites.profiling.injection_on_rank import Sleeper, before_launches
from suites.profiling.recorder import Recorder
from suites.training.trainer import Trainer


def begin(state: RankState, cores: list[int]) -> None:
    """Keep this rank on its core, if it has one of its own, with one thread."""
    torch.set_num_threads(1)
    use_ring_reduce_scatter()
    if cores:
        os.sched_setaffinity(0, {cores[dist.get_rank()]})
        for thread in os.listdir("/proc/self/task"):  # gloo's threads exist already
            os.sched_setaffinity(int(thread), {cores[dist.get_rank()]})


def process_id(state: RankState) -> int:
    """Return this rank's process id."""
    return os.getpid()


def record(
    state: RankState, key: str, steps: int, folder: str, injection: Mapping[str, Any] | None, load: int = 0
) -> list[list[float]]:
    """Record steps, with what is injected into this rank itself; the trace goes to `folder`, if given.

    Returns each step's `StepAccount`.
    """
    trainer: Trainer = state[key]
    recorders: dict[str, Recorder] = state.setdefault("recorders", {})
    recorder = recorders.get(key) or recorders.setdefault(key, Recorder(trainer))
    wait, launches = Sleeper(0.0), Sleeper(0.0)
    if injection is not None and injection["rank"] == dist.get_rank():
        sleeper = Sleeper(injection["seconds"], injection["every"])
        wait = sleeper if injection["kind"] == "data_wait" else wait
        launches = sleeper if injection["kind"] == "launch_sleep" else launches
    trace = os.path.join(folder, f"rank{dist.get_rank()}.json") if folder else ""
    dist.barrier()
    with before_launches(trainer, launches):
        return [
            list(one)
            for one in recorder.record(steps, wait, launches, trace, load if dist.get_rank() == 1 else 0)
        ]


def reduce_s(state: RankState, key: str, count: int) -> list[float]:
    """Return the seconds of each all-reduce of as many bytes as the step's gradients have."""
    import time

    trainer: Trainer = state[key]
    bucket = torch.ones(sum(one.numel() for one in trainer.plain.parameters()), device=trainer.device)
    taken_s = []
    for _ in range(count):
        dist.barrier()
        begin_s = time.perf_counter()
        dist.all_reduce(bucket)
        taken_s.append(time.perf_counter() - begin_s)
        bucket.fill_(1.0)
    return taken_s
