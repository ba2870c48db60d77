"""The functions that a rank of the profiling suite runs, called by name.

See `harness.instruments.distributed.rank_pool`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.instruments.distributed.fake_process_group import use_ring_reduce_scatter
from harness.instruments.distributed.rank_worker import RankState
from harness.instruments.memory.bf16_products import matmul_FLOP_per_s
from suites.profiling.injection.injection_on_rank import Sleeper, before_launches
from suites.profiling.recorder import Recorder
from suites.training.on_rank import device
from suites.training.trainer import Trainer


def begin(state: RankState, cores: list[int]) -> None:
    """Keep this rank on its core, if it has one of its own, with one thread."""
    torch.set_num_threads(1)
    use_ring_reduce_scatter()
    if cores:
        os.sched_setaffinity(0, {cores[dist.get_rank()]})
        for thread in os.listdir("/proc/self/task"):  # gloo's threads exist already
            os.sched_setaffinity(int(thread), {cores[dist.get_rank()]})


def matmul_rate(state: RankState) -> float | None:
    """Return the FLOP/s at which this rank multiplies in fp32 while all do; None on a GPU."""
    dist.barrier()
    return None if device().type == "cuda" else matmul_FLOP_per_s()["fp32"]


def start(state: RankState, key: str, injection: Mapping[str, Any] | None, load: int, profiler: bool) -> None:
    """Start a recording; `load` is the process that competes with the rank of the injection."""
    own = injection if injection is not None and injection["rank"] == dist.get_rank() else None
    sleeper = Sleeper(own["seconds"], own["every"]) if own else Sleeper(0.0)
    kind = own["kind"] if own else ""
    wait, launches = (sleeper if kind == one else Sleeper(0.0) for one in ("data_wait", "launch_sleep"))
    trainer: Trainer = state[key]
    state["sleeper"], state["end"] = sleeper, before_launches(trainer, launches)
    state["recorder"] = Recorder(trainer, wait, launches, load if own else 0, profiler)


def step(state: RankState, number: int | None, injected: bool) -> list[float]:
    """Run one step with the others, with what is injected into this rank itself, or without; its account."""
    state["sleeper"].active = injected
    recorder: Recorder = state["recorder"]
    dist.barrier()
    return list(recorder.step(number))


def end(state: RankState, folder: str) -> dict[str, float]:
    """End the recording, write the trace into `folder`, and return the means of the device's telemetry."""
    state.pop("end")()
    recorder: Recorder = state.pop("recorder")
    return recorder.end(os.path.join(folder, f"rank{dist.get_rank()}.json"))


def communicate_s(state: RankState, key: str, count: int) -> list[float]:
    """Return the seconds of what the step sends, alone, `count` times: see `send_as`."""
    trainer: Trainer = state[key]
    ranks = dist.get_world_size()
    numbers = sum(one.numel() for one in trainer.plain.parameters())
    whole = torch.ones(-(-numbers // ranks) * ranks, device=trainer.device)
    sharded = trainer.step.features.sharding == "zero3"
    taken_s = []
    for _ in range(count):
        dist.barrier()
        begin_s = time.perf_counter()
        send_as(sharded, whole)
        taken_s.append(time.perf_counter() - begin_s)
    return taken_s


def send_as(sharded: bool, whole: Tensor) -> None:
    """Send as DDP does, or as FSDP: gather parameters for either pass, and scatter the reduced gradients.

    `whole`: as many numbers as the model has parameters, or a few more, so that ranks have equal shares.
    """
    if not sharded:
        dist.all_reduce(whole)
        return
    share = whole.chunk(dist.get_world_size())[dist.get_rank()].clone()
    for _ in ("forward pass", "backward pass"):
        dist.all_gather_into_tensor(whole, share)
    dist.reduce_scatter_tensor(share, whole)
