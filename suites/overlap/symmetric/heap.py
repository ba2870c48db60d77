"""Symmetric memory over processes of one machine: a heap per rank, all of them mapped by every rank.

The memory is an anonymous file of the kernel (memfd_create), of which nothing is left however processes end.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

import numpy
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.torch_internals import symmetric_memory
from harness.instruments.triton_kernels.launch import Grid, launch
from harness.records import Unavailable

ALIGNMENT_B = 64  # alignment of every tensor: a cache line, and what GPUs load at once

TIMEOUT_NS = 30_000_000_000

HEAP = {"signals": "*i32", "heaps": "*i64", "faults": "*i32", "rank": "i32", "epoch": "i32"}
"""Types of what kernels that use the heaps take."""

ODD = ("rank", "epoch")  # those that are no multiples of 16; see `Compilation`

WAITED_FOR = {1: "signal", 2: "word"}
"""What a kernel waited for in vain, by the first element of `faults`."""


class SignalTimeout(TimeoutError):
    """A rank waited too long for a signal or a word; the text names the rank, which one, and the values."""


class HeapFull(MemoryError):
    """A heap is too small for what is asked of it; the text has the bytes."""


class Heaps(NamedTuple):
    """The memory of all ranks as one rank sees it: its own heap, and the address of each rank's."""

    own: Tensor  # (heap_B,) uint8
    addresses: Tensor  # (ranks,) int64
    mapped: tuple[Tensor, ...] = ()  # each rank's heap, (heap_B,) uint8; on GPUs none


class SymmetricHeap:
    """One rank's view of the heaps of all ranks.

    Every rank must take the same tensors in the same order; then a tensor is at the same offset in each.
    """

    def __init__(self, heaps: Heaps, rank: int, timeout_ns: int = TIMEOUT_NS) -> None:
        self.rank, self.ranks = rank, len(heaps.addresses)
        self._heaps, self._timeout_ns, self._used_B = heaps, timeout_ns, 0
        self._faults = torch.zeros(4, dtype=torch.int32, device=heaps.own.device)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next tensor of this rank's heap, all 0 as it is from the start; raises `HeapFull`.

        Clearing it here would be too late: a peer may have written.
        """
        size_B = dtype.itemsize * int(numpy.prod(shape))
        begin, heap_B = self._used_B, self._heaps.own.numel()
        if begin + size_B > heap_B:
            raise HeapFull(
                f"the symmetric heap of rank {self.rank} has {heap_B:,} B, {heap_B - begin:,} B free; "
                f"{tuple(shape)} of {dtype} need {size_B:,} B"
            )
        self._used_B = -(-(begin + size_B) // ALIGNMENT_B) * ALIGNMENT_B
        return self._heaps.own[begin : begin + size_B].view(dtype).view(shape)

    def at_rank(self, tensor: Tensor, rank: int) -> Tensor:
        """Return the tensor at the same place in another rank's heap, where this process has mapped it."""
        first_B = tensor.data_ptr() - self._heaps.own.data_ptr()
        heap = self._heaps.mapped[rank]
        return (
            heap[first_B : first_B + tensor.numel() * tensor.itemsize].view(tensor.dtype).view(tensor.shape)
        )

    def signals(self, count: int) -> Tensor:
        """Return signals of this rank, all 0."""
        return self.tensor((count,), torch.int32)

    def launch(self, kernel: Any, grid: Grid, *arguments: Any, **options: Any) -> None:
        """Run a kernel that has the parameters heaps, faults, rank, RANKS and TIMEOUT_NS.

        Raises `SignalTimeout`, and `Unavailable` where Triton cannot wait with a time limit.
        """
        if not hasattr(tl, "atomic_poll"):
            raise Unavailable(
                f"symmetric memory needs tl.atomic_poll of Triton 3.9; this is {triton.__version__}"
            )
        launch(
            kernel, grid, *arguments, heaps=self._heaps.addresses, faults=self._faults, rank=self.rank,
            RANKS=self.ranks, TIMEOUT_NS=self._timeout_ns, **options,
        )  # fmt: skip
        failed, index, expected, seen = self._faults.tolist()
        if failed:
            self._faults.zero_()
            raise SignalTimeout(
                f"rank {self.rank} waited {self._timeout_ns / 1e9:g} s for its {WAITED_FOR[failed]} {index} "
                f"of {getattr(kernel, '__name__', kernel)} to be {expected}; it is {seen}"
            )


def shared_heaps(heap_B: int) -> Heaps:
    """Map `heap_B` bytes per rank of the process group, on one machine; a collective call.

    Rank 0 creates the memory; the others open it by its process. Raises `HeapFull`.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole_B = -(-heap_B // mmap.PAGESIZE) * mmap.PAGESIZE
    where: list[Any] = [None]
    descriptor = -1
    if rank == 0:
        where = [(os.getpid(), descriptor := _memory(whole_B * ranks))]
    dist.broadcast_object_list(where, 0)
    if rank != 0:
        pid, number = where[0]
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
    mapped = mmap.mmap(descriptor, whole_B * ranks)
    dist.barrier()
    os.close(descriptor)
    memory = numpy.frombuffer(mapped, dtype=numpy.uint8)
    addresses = [memory.ctypes.data + one * whole_B for one in range(ranks)]
    heaps = tuple(part[:heap_B] for part in torch.from_numpy(memory).split(whole_B))
    return Heaps(heaps[rank], torch.tensor(addresses, dtype=torch.int64), heaps)


def _memory(size_B: int) -> int:
    descriptor = os.memfd_create("symmetric heap", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size_B)
        os.posix_fallocate(descriptor, 0, size_B)
    except OSError as error:
        os.close(descriptor)
        raise HeapFull(f"this machine cannot share {size_B:,} B: {error.strerror}") from error
    return descriptor


def gpu_heaps(heap_B: int) -> Heaps:
    """Map `heap_B` bytes per rank of the process group, each on its current GPU; a collective call.

    Raises `Unavailable` without CUDA, or where PyTorch cannot share memory between these GPUs.
    """
    if not torch.cuda.is_available():
        raise Unavailable("symmetric memory of GPUs needs CUDA, which PyTorch does not find here")
    own, addresses = symmetric_memory(heap_B)
    own.zero_()
    torch.cuda.synchronize()
    dist.barrier()  # no rank writes to a heap that is not zeroed yet
    return Heaps(own, torch.tensor(addresses, dtype=torch.int64, device=own.device))
