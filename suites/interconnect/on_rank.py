"""What a rank of the interconnect suite does besides training: traces of updates, and collectives alone.

`harness.instruments.distributed.rank_pool` calls it by name; `suites.training.on_rank` makes the
trainers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from harness.instruments.distributed.rank_worker import RankState
from suites.interconnect.trace import Trace, TraceEvent, traced
from suites.training.on_rank import device
from suites.training.trainer import Trainer


def describe_rank(state: RankState) -> tuple[str, int, str]:
    """Return what identifies this machine, this rank's number on its node, and its device's name."""
    machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    name = torch.cuda.get_device_name(device()) if device().type == "cuda" else "cpu"
    return machine, int(os.environ["LOCAL_RANK"]), name


def watch(state: RankState, key: str) -> None:
    """Prepare a trainer so that `trace` sees all collectives of its updates."""
    trainer: Trainer = state[key]
    ddp = trainer.step.settings_of("ddp")
    if ddp is not None and ddp.get("reduce_dtype", "fp32") == "fp32":  # it has no hook of its own
        model: Any = trainer.model
        model.register_comm_hook(None, allreduce_hook)


def trace(state: RankState, key: str) -> list[TraceEvent]:
    """Return the events of one update."""
    trainer: Any = state[key]
    batches = trainer.text_batches()
    dist.barrier()
    with traced() as seen:
        if trainer.step.settings_of("ddp") is not None:
            trainer.backward = _drained(trainer.backward, seen)
        trainer.train_step(batches)
        seen.ended()
    vars(trainer).pop("backward", None)
    state[_events_of(key)] = seen.events
    return seen.events


def _events_of(key: str) -> str:
    return f"events of {key}"


def _drained(backward: Callable[..., Tensor], seen: Trace) -> Callable[..., Tensor]:
    """Wrap DDP's backward pass, which ends with waiting for every bucket."""

    def drained(*arguments: Any, **named: Any) -> Tensor:
        loss = backward(*arguments, **named)
        seen.drained()
        return loss

    return drained


def collectives(state: RankState, key: str) -> list[list[float]]:
    """Repeat the last traced update, asleep where it computed; return when its collectives began and ended.

    Order and pace are the update's, because how long gloo takes depends on which rank is first.
    """
    events = state[_events_of(key)]
    begin = {event[1]: _begin(*event[2:]) for event in events if event[0] == "begin"}
    started_s: list[float] = []
    with ThreadPoolExecutor(1) as watcher:
        ended_s: dict[int, Future[float]] = {}
        dist.barrier()
        for kind, value, *_ in events:
            if kind == "compute":
                time.sleep(value)
            elif kind == "begin":
                started_s.append(time.monotonic())
                ended_s[value] = watcher.submit(_ended_s, begin[value]())
            else:
                ended_s[value].result()
    return [[start, end.result()] for start, end in zip(started_s, ended_s.values(), strict=True)]


def _ended_s(work: Any) -> float:
    """Wait for a collective; return when it ended."""
    work.wait()
    return time.monotonic()


def _begin(name: str, elements: int, dtype: str) -> Callable[[], Any]:
    """Return what begins that collective on tensors of its own; `elements` of its larger side."""
    large = torch.zeros(elements, dtype=getattr(torch, dtype))
    small = torch.zeros(elements // dist.get_world_size(), dtype=large.dtype)
    kinds: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(large, async_op=True),
        "all_gather": lambda: dist.all_gather_into_tensor(large, small, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(small, large, async_op=True),
    }
    return kinds[name]
