"""Who copies bytes between device and host: at once, or on a stream or a thread beside the computation.

`suites.offload.activations` asks them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from suites.training.host_memory import HostMemory

STACK_B = 2**18
"""Of the thread that copies: it counts as private memory, and needs little of the usual 8 MiB."""


class Copy(NamedTuple):
    """A copy under way: whether it is `over`; after `wait`, what is computed next finds it done."""

    over: Callable[[], bool]
    wait: Callable[[], object]


class Carrier(Protocol):
    """Who copies bytes between device and host, in the order in which it is asked."""

    def copy(self, target: Tensor, source: Tensor) -> Copy:
        """Begin to copy; both must live, and `source` must not change, until it is over."""


class AtOnce:
    """Copies as asked."""

    def copy(self, target: Tensor, source: Tensor) -> Copy:
        """See `Carrier`."""
        target.copy_(source)
        return Copy(lambda: True, lambda: None)


class SideStream:
    """Copies on a CUDA stream beside the one that computes, behind all that was computed when it was asked.

    Both ends belong to the computing stream, which waits for a copy before it uses or gives back either.
    """

    def __init__(self, host: HostMemory) -> None:
        self.device = host.device
        self.stream = torch.cuda.Stream(host.device)  # type: ignore[no-untyped-call]

    def copy(self, target: Tensor, source: Tensor) -> Copy:
        """See `Carrier`."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
        event = self.stream.record_event()
        return Copy(event.query, lambda: torch.cuda.current_stream(self.device).wait_event(event))


class Thread:
    """Copies on a thread beside the one that computes; `host` counts the bytes, which no dispatch mode sees.

    The thread holds no tensor once a copy is over, so memory is always given back by who computes: the
    allocator's events are told by thread. It copies by itself, where torch would start a team of threads.
    """

    def __init__(self, host: HostMemory) -> None:
        self.host = host
        usual = threading.stack_size(STACK_B)
        self.worker = ThreadPoolExecutor(1, "activations")
        self.worker.submit(int).result()  # the thread starts, with that stack
        threading.stack_size(usual)

    def copy(self, target: Tensor, source: Tensor) -> Copy:
        """See `Carrier`."""
        self.host.carried(target)
        future = self.worker.submit(_copy, [target, source])
        return Copy(future.done, future.result)


def _copy(ends: list[Tensor]) -> None:
    target, source = (one.data_ptr() for one in ends)
    ctypes.memmove(target, source, ends[0].nbytes)  # without the interpreter's lock
    ends.clear()
