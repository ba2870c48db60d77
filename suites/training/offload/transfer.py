"""Copy bytes between device and host: synchronously, or on a stream or thread alongside the computation.

Used by activation offload.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from suites.training.offload.host_memory import HostMemory

STACK_B = 2**18
"""Stack of the copying thread: it counts as private memory, and needs little of the usual 8 MiB."""


class Copy(NamedTuple):
    """A copy in progress: whether it is `over`; after `wait`, later computation sees it complete."""

    over: Callable[[], bool]
    wait: Callable[[], object]


class Carrier(Protocol):
    """Copies bytes between device and host, in the order of the calls."""

    def copy(self, target: Tensor, source: Tensor) -> Copy:
        """Start a copy; both must live, and `source` must not change, until it is over."""


class AtOnce:
    """Copies synchronously."""

    def copy(self, target: Tensor, source: Tensor) -> Copy:
        """See `Carrier`."""
        target.copy_(source)
        return Copy(lambda: True, lambda: None)


class WhenNeeded:
    """Simulates copies that take as long as they may: each is over when it is waited for."""

    def copy(self, target: Tensor, source: Tensor) -> Copy:
        """See `Carrier`."""
        target.copy_(source)
        return Copy(lambda: False, lambda: None)


class SideStream:
    """Copies on a separate CUDA stream, after all computation that was queued at the call.

    Both ends belong to the computing stream, which waits for a copy before it uses or frees either.
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


class CopyThread:
    """Copies on a separate thread; `host` counts the bytes, which no dispatch mode sees.

    The thread refers to no tensor once a copy is over, so memory is always freed by the computing thread: the
    allocator's events are recorded per thread. It copies alone, where torch would start a team of threads.
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
    ctypes.memmove(target, source, ends[0].nbytes)  # releases the interpreter's lock
    ends.clear()
