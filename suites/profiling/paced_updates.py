"""What a rank of the clock_speed suite does besides training: updates without barriers, and when."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from harness.instruments.distributed.rank_worker import RankState
from suites.training.trainer import Trainer


def watch_arrivals(state: RankState, key: str) -> None:
    """Note when the trainer's gradients are ready to be averaged, and the processor time used until then."""
    trainer: Trainer = state[key]
    arrivals: list[tuple[float, float]] = []

    def noted(bucket: Any) -> Any:
        arrivals.append((time.monotonic(), time.process_time()))
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    model: Any = trainer.model
    model.register_comm_hook(None, lambda _, bucket: noted(bucket))
    state[f"arrivals of {key}"] = arrivals


def instants(state: RankState, key: str, count: int) -> dict[str, list[float]]:
    """Run updates one after the other; return, for each, when gradients were ready and when averaged.

    Times are by time.monotonic, which all processes of a machine share. `ready_cpu_s` and `averaged_cpu_s`:
    processor time of this process until then. Between two updates there is no barrier.
    """
    trainer: Trainer = state[key]
    arrivals: list[tuple[float, float]] = state[f"arrivals of {key}"]
    batches = [trainer.text_batches() for _ in range(count)]
    found: dict[str, list[float]] = {"ready": [], "ready_cpu_s": [], "averaged": [], "averaged_cpu_s": []}
    dist.barrier()
    found["begin"] = [time.monotonic()]
    found["begin_cpu_s"] = [time.process_time()]
    for batch in batches:
        trainer.accumulate(batch, len(batch))  # returns once gradients are averaged
        found["averaged"].append(time.monotonic())
        found["averaged_cpu_s"].append(time.process_time())
        ready_s, ready_cpu_s = arrivals[-1]
        found["ready"].append(ready_s)
        found["ready_cpu_s"].append(ready_cpu_s)
        trainer.update()
    return found
