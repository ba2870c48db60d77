"""Trace one update on a rank: the computation between its collectives, their starts and their waits.

The links are unshaped meanwhile, and time spent waiting is left out, so that what remains is the step without
a network. Collective launches are traced by patching ProcessGroup and waits by patching Work. DDP bypasses
both in C++, so its launches are traced through a communication hook and its waits through `drained`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from harness.instruments.distributed.fake_process_group import RingWork

BEGUN = {
    "allreduce": "all_reduce",
    "all_gather_single": "all_gather",
    "_allgather_base": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "allgather_into_tensor_coalesced": "other",
    "all_gather_single_coalesced": "other",
    "reduce_scatter_tensor_coalesced": "other",
    "reduce_scatter_single_coalesced": "other",
    "allgather": "other",
    "reduce_scatter": "other",
    "broadcast": "other",
    "reduce": "other",
    "gather": "other",
}
"""Methods of torch.distributed.ProcessGroup that the suite can time by themselves."""

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
        self._compute()
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.events.append(["begin", len(self.works), collective, tensor.numel(), dtype])
        self.works.append(begin())
        return self.works[-1]

    def wait(self, work: Any, wait: Callable[[], Any]) -> Any:
        """Record a wait for a collective, and wait."""
        if self._waits:
            return wait()
        self._compute()
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

    def ended(self) -> None:
        """Record the update's end."""
        self._compute()

    def _compute(self) -> None:
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
