"""Host memory for the tensors that autograd saves, each storage once, reused from step to step.

`techniques/activations/activation_offload.py` uses it for a model's blocks; names, parameters and results do
not change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from harness.instruments.torch_internals import over_storage, storage_key
from suites.training.offload.host_memory import Carrier, HostMemory

SMALL_B = 4096
"""Storages of fewer bytes stay on the device: a copy of less than a page costs more than it frees."""

OF_A_WEIGHT = frozenset({"TBackward0", "TransposeBackward0", "ToCopyBackward0"})
"""Operations on a weight before a product: transposed, and cast by autocast, which keeps the cast itself."""


class Shelf:
    """Host memory for a model's saved storages, reused from step to step."""

    def __init__(self, model: nn.Module, host: HostMemory, carrier: Carrier) -> None:
        self.model, self.host, self.carrier = model, host, carrier
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)  # by size

    def hooks(self) -> AbstractContextManager[None]:
        """Return hooks for one block's forward pass.

        What it saves is copied down at once and up when needed.
        """
        return self.storing(lambda stored: stored.release())

    @contextmanager
    def storing(self, on_new: Callable[[Stored], None]) -> Iterator[None]:
        """Put each storage that autograd saves inside the block here once; `on_new` is called with it."""
        known: dict[tuple[StorageWeakRef, int], Stored] = {}
        fixed = {storage_key(one.untyped_storage()) for one in self.model.buffers()}

        def pack(tensor: Tensor) -> Tensor | Saved:
            storage = tensor.untyped_storage()
            if storage_key(storage) in fixed or self._stays(tensor):
                # A parameter itself, whose data an engine may change; no result, which refers to the graph.
                return tensor if tensor.is_leaf else tensor.detach()
            key = (StorageWeakRef(storage), tensor._version)  # type: ignore[no-untyped-call]
            if key not in known:
                known[key] = self._store(storage)
                on_new(known[key])
            return Saved(
                known[key], tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride()
            )

        try:
            with saved_tensors_hooks(pack, unpack):
                yield
        finally:
            known.clear()  # the graph keeps `pack`, which must not refer to everything

    def _stays(self, tensor: Tensor) -> bool:
        small = tensor.untyped_storage().nbytes() < SMALL_B
        return small or tensor.device.type != self.host.device.type or of_a_weight(tensor)

    def _store(self, storage: torch.UntypedStorage) -> Stored:
        size_B = storage.nbytes()
        free = self._free[size_B]
        below = free.pop() if free else self.host.empty((size_B,), torch.uint8)
        above = over_storage(storage, torch.uint8, self.host.device, 0, (size_B,), (1,))
        return Stored(below, above, self.carrier, self._free)


class Stored:
    """The bytes of a storage: `above` on the device, `below` on the host, or being copied.

    It is freed with the last operation that saved it; their backward passes run one after the other, or
    nearly so, and share what was copied up.
    """

    def __init__(self, below: Tensor, above: Tensor, carrier: Carrier, free: dict[int, list[Tensor]]) -> None:
        self.below, self.carrier, self._free, self.device = below, carrier, free, above.device
        self.above: Tensor | None = above
        self.copy = carrier.copy(below, above)

    def release(self) -> None:
        """Release the device's bytes once they are copied."""
        self.copy.wait()
        self.above = None

    def fetch(self) -> None:
        """Start copying the bytes up, unless they are there."""
        if self.above is None:
            self.above = torch.empty(self.below.shape, dtype=torch.uint8, device=self.device)
            self.copy = self.carrier.copy(self.above, self.below)

    def on_device(self) -> Tensor:
        """Return all bytes on the device, (B,) of uint8."""
        self.fetch()
        self.copy.wait()
        assert self.above is not None
        return self.above

    def __del__(self) -> None:
        if hasattr(self, "copy"):
            self.release()
            self._free[self.below.nbytes].append(self.below)


class Saved(NamedTuple):
    """A saved tensor: a view of what is stored."""

    stored: Stored
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    def tensor(self) -> Tensor:
        """Return the tensor on the device."""
        above = self.stored.on_device()
        storage = above.untyped_storage()
        return over_storage(storage, self.dtype, above.device, self.offset, self.shape, self.stride)


def unpack(saved: Tensor | Saved) -> Tensor:
    """Return what `Shelf.storing` packed."""
    return saved.tensor() if isinstance(saved, Saved) else saved


def of_a_weight(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter, a view of one, or one cast for a product."""
    node: Any = tensor.grad_fn
    if node is None:
        return tensor.requires_grad
    while type(node).__name__ in OF_A_WEIGHT:
        node = node.next_functions[0][0]
    return type(node).__name__ == "AccumulateGrad"
