"""The memory tier below the device: tensors that a technique offloads, and their bytes.

With a GPU it is the machine's page-locked memory. Without one it is emulated: a tensor on it is a file mapped
into memory, which the kernel may page out and which a limit on private memory does not count. In a dry run it
has fake tensors, which are not counted.

Copies between device and host are synchronous, or on a stream or thread alongside the computation.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import tempfile
import threading
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from harness.instruments import torch_internals
from harness.instruments.memory.dry_run.fake_tensors import StorageLog
from harness.records import Unavailable


class HostMemory:
    """Allocates tensors on the tier below `device`; its files, if any, are in `folder`, unlinked.

    `most_B`: the most bytes that were ever there. `up_B`, `down_B`: bytes that copying threads have moved up
    and down, which no dispatch mode sees.
    """

    def __init__(self, device: torch.device, folder: str = "") -> None:
        self.device = device
        self.most_B = 0
        self._mapped_B = 0
        self._noted: dict[int, tuple[StorageWeakRef, int]] = {}
        self.up_B = self.down_B = 0
        self._folder = folder or None
        self._starts: list[int] = []  # of the mappings, in order
        self._ends: dict[int, int] = {}

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialized tensor there (zeros where it is a file).

        Raises `Unavailable` where the folder cannot be written, or its disk is full.
        """
        size_B = math.prod(shape) * dtype.itemsize
        if size_B == 0:
            return torch.empty(shape, dtype=dtype)
        if self.device.type != "cpu":
            tensor = torch.empty(shape, dtype=dtype, pin_memory=True)
            self.note(tensor)
            return tensor
        mapping = self._map(size_B)
        flat = torch.frombuffer(mapping, dtype=dtype)
        start = flat.data_ptr()
        insort(self._starts, start)
        self._ends[start] = start + size_B
        self._mapped_B += size_B
        self._rise()
        weakref.finalize(mapping, self._forget, start, size_B)
        return flat.view(tuple(shape))

    def keep(self, tensor: Tensor) -> Tensor:
        """Return a copy of `tensor` there, or the tensor itself if it is there already."""
        if self.holds(tensor):
            if self.device.type != "cpu":
                self.note(tensor)
            return tensor
        kept = self.empty(tensor.shape, tensor.dtype)
        kept.copy_(tensor.detach())
        return kept

    def note(self, tensor: Tensor) -> None:
        """Count a tensor that is in the host memory of a GPU, for as long as its storage lives."""
        storage = tensor.untyped_storage()
        self._noted[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        self._rise()

    @property
    def allocated_B(self) -> int:
        """Return the bytes that are there now."""
        self._noted = {at: one for at, one in self._noted.items() if not one[0].expired()}  # type: ignore[no-untyped-call]
        return self._mapped_B + sum(size_B for _, size_B in self._noted.values())

    def carried(self, target: Tensor) -> None:
        """Count what a copying thread moves into `target`."""
        if self.holds(target):
            self.down_B += target.nbytes
        else:
            self.up_B += target.nbytes

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the tensor's memory is there."""
        if tensor.device.type != "cpu":
            return False
        if self.device.type != "cpu":
            return True
        address = address_of(tensor)
        index = bisect_right(self._starts, address) - 1
        return index >= 0 and address < self._ends[self._starts[index]]

    def _map(self, size_B: int) -> mmap.mmap:
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                os.posix_fallocate(
                    file.fileno(), 0, size_B
                )  # a full disk is reported here, not by SIGBUS later
                return mmap.mmap(file.fileno(), size_B)
        except OSError as error:
            raise Unavailable(
                f"{size_B} B more for the host cannot be had on the disk beneath its files, after "
                f"{self.allocated_B} B: {error.strerror}"
            ) from None

    def _rise(self) -> None:
        self.most_B = max(self.most_B, self.allocated_B)

    def _forget(self, start: int, size_B: int) -> None:
        self._starts.remove(start)
        del self._ends[start]
        self._mapped_B -= size_B


def address_of(tensor: Tensor) -> int:
    """Return the address of the tensor's storage; 0 where it has no memory of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # freed, or of a kind that has none
        return 0


def on_host(tensor: Tensor, host: HostMemory) -> Tensor:
    """Return the tensor, or this rank's part of it, on the host."""
    if not isinstance(tensor, DTensor):
        return host.keep(tensor)
    there: Tensor = torch_internals.distributed_like(tensor, host.keep(tensor.to_local()))
    return there


def states_on_host(optimizer: torch.optim.Optimizer, host: HostMemory) -> None:
    """Create Adam's two moments on the host, before the optimizer creates them next to the parameters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),  # torch knows the value of a fake one
                "exp_avg": on_host(torch.zeros_like(parameter), host),
                "exp_avg_sq": on_host(torch.zeros_like(parameter), host),
            }


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


class Synchronous(NamedTuple):
    """Copies synchronously; `late`: as if copies took as long as they may, each is over when waited for."""

    late: bool = False

    def copy(self, target: Tensor, source: Tensor) -> Copy:
        """See `Carrier`."""
        target.copy_(source)
        return Copy(lambda: not self.late, lambda: None)


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


class Resources(NamedTuple):
    """Resources of the process in which a technique is built."""

    device: torch.device
    host: HostMemory
    folder: str = ""  # for files; "": the system's for temporary ones
    meshes: Any = None  # `ranks.mesh.Meshes` of the step's ranks


class SimulatedHost(HostMemory):
    """Makes fake tensors on the tier below the device; `cuda`: of a CUDA device."""

    def __init__(self, log: StorageLog, cuda: bool) -> None:
        super().__init__(torch.device("cpu"))
        self.cuda, self._log = cuda, log

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialized fake tensor there."""
        with self._log.below():
            return torch.empty(tuple(shape), dtype=dtype)

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the tensor is there."""
        return self._log.is_below(tensor)

    def note(self, tensor: Tensor) -> None:
        """Do nothing: no bytes are counted."""
