"""The memory tier below the device: tensors that a technique offloads, and their bytes.

With a GPU it is the machine's page-locked memory. Without one it is emulated: a tensor on it is a file mapped
into memory, which the kernel may page out and which a limit on private memory does not count.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from bisect import bisect_right, insort
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from harness.instruments import torch_internals
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
