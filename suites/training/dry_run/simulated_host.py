"""The memory tier below a simulated device: fake tensors that a dry run does not count."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.instruments.memory.dry_run.fake_tensors import StorageLog
from suites.training.offload.host_memory import HostMemory


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
