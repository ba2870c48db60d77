"""What one update does between its collectives: when each begins, when it is waited for, what lies between.

On a rank, while links are as fast as the machine; what is spent waiting is left out, so that what remains is
the step without a network. Begun collectives are seen at torch's ProcessGroup, waits at its Work; DDP does
both in C++, and shows the first through torch's own hook for the same reduction, the second by `drained`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

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
"""Methods of torch.distributed.ProcessGroup, and what the suite can time by itself."""

Event = list[Any]
"""["compute", s], ["begin", number, collective, elements, dtype], ["wait", number]."""


class Trace:
    """Events of one update, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.works: list[Any] = []  # of each collective, by its number
        self._since_s = time.perf_counter()

    def begin(self, collective: str, tensor: torch.Tensor, begin: Callable[[], Any]) -> Any:
        """Begin a collective; its Work."""
        self._compute()
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.events.append(["begin", len(self.works), collective, tensor.numel(), dtype])
        self.works.append(begin())
        return self.works[-1]

    def wait(self, work: Any, wait: Callable[[], Any]) -> Any:
        """Wait for a collective."""
        self._compute()
        self.events += [["wait", number] for number, one in enumerate(self.works) if one is work]
        done = wait()
        self._since_s = time.perf_counter()
        return done

    def drained(self) -> None:
        """All that had begun is over, and since the last of them began nothing was done but wait."""
        self._since_s = time.perf_counter()
        self.events += [["wait", number] for number in range(len(self.works))]

    def ended(self) -> None:
        """The update is over."""
        self._compute()

    def _compute(self) -> None:
        now_s = time.perf_counter()
        self.events.append(["compute", now_s - self._since_s])
        self._since_s = now_s


@contextmanager
def traced() -> Iterator[Trace]:
    """The trace of what is done in here."""
    trace = Trace()
    group: Any = dist.ProcessGroup
    work: Any = dist.Work
    methods = {name: vars(group)[name] for name in BEGUN if name in vars(group)}
    wait = vars(work)["wait"]
    for name, method in methods.items():
        setattr(group, name, _beginning(trace, BEGUN[name], method))
    work.wait = _waiting(trace, wait)
    try:
        yield trace
    finally:
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
