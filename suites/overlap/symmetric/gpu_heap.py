"""Symmetric memory over the GPUs of a process group: PyTorch's, which maps every rank's memory in each."""

from __future__ import annotations

import torch
import torch.distributed as dist

from harness.instruments.torch_internals import symmetric_memory
from harness.records import Unavailable
from suites.overlap.symmetric.heap import Heaps


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
