"""What a rank of the interconnect suite does besides training: traces of updates, and collectives alone.

A trace is that of one update: the computation between its collectives, their starts and their waits. The
links are unshaped meanwhile, and time spent waiting is left out. Collective launches are traced by patching
ProcessGroup and waits by patching Work. DDP bypasses both in C++, so its launches are traced through a
communication hook and its waits through `drained`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from harness.instruments.distributed.fake_process_group import RingWork
from harness.instruments.distributed.rank_worker import RankState
from suites.training.on_rank import device
from suites.training.trainer import Trainer

BEGUN = {
    "allreduce": "all_reduce",
    "all_gather_single": "all_gather",
    "_allgather_base": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    **dict.fromkeys(("allgather_into_tensor_coalesced", "all_gather_single_coalesced"), "other"),
    **dict.fromkeys(("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"), "other"),
    **dict.fromkeys(("allgather", "reduce_scatter", "broadcast", "reduce", "gather"), "other"),
}
"""Methods of torch.distributed.ProcessGroup, by what they do; others than these three are not timed alone."""

TraceEvent = list[Any]
"""["compute", s], ["begin", number, collective, elements, dtype], ["wait", number]."""


class Trace:
    """Events of one update, in order."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []
        self.works: list[Any] = []  # of each collective, by its number
        self._since_s = time.perf_counter()
        self._waits = False  # for a collective, whose own messages are waited for too

    def begin(self, collective: str, tensor: torch.Tensor, begin: Callable[[], Any]) -> Any:
        """Record a collective's start and return its Work."""
        self.computed()
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.events.append(["begin", len(self.works), collective, tensor.numel(), dtype])
        self.works.append(begin())
        return self.works[-1]

    def wait(self, work: Any, wait: Callable[[], Any]) -> Any:
        """Record a wait for a collective, and wait."""
        if self._waits:
            return wait()
        self.computed()
        self.events += [["wait", number] for number, one in enumerate(self.works) if one is work]
        self._waits = True
        try:
            done = wait()
        finally:
            self._waits = False
        self._since_s = time.perf_counter()
        return done

    def drained(self) -> None:
        """Record that all started collectives have ended, with nothing but waiting since the last start."""
        self._since_s = time.perf_counter()
        self.events += [["wait", number] for number in range(len(self.works))]

    def computed(self) -> None:
        """Record the computation until now."""
        now_s = time.perf_counter()
        self.events.append(["compute", now_s - self._since_s])
        self._since_s = now_s


@contextmanager
def traced() -> Iterator[Trace]:
    """Return the trace of what happens inside the block."""
    trace = Trace()
    group: Any = dist.ProcessGroup
    works: tuple[Any, ...] = (dist.Work, RingWork)
    methods = {name: vars(group)[name] for name in BEGUN if name in vars(group)}
    waits = [vars(work)["wait"] for work in works]
    for name, method in methods.items():
        setattr(group, name, _beginning(trace, BEGUN[name], method))
    for work, wait in zip(works, waits, strict=True):
        work.wait = _waiting(trace, wait)
    try:
        yield trace
    finally:
        for work, wait in zip(works, waits, strict=True):
            work.wait = wait
        for name, method in methods.items():
            setattr(group, name, method)


def _beginning(trace: Trace, collective: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def begin(group: Any, *arguments: Any, **named: Any) -> Any:
        largest = max(_tensors(arguments), key=torch.Tensor.numel)
        return trace.begin(collective, largest, lambda: method(group, *arguments, **named))

    return begin


def _waiting(trace: Trace, wait: Callable[..., Any]) -> Callable[..., Any]:
    def waited(work: Any, *arguments: Any) -> Any:
        return trace.wait(work, lambda: wait(work, *arguments))

    return waited


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


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
        seen.computed()
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
