"""Activation offload (torch's `save_on_cpu`): tensors saved for the backward pass are kept on the host.

Without `prefetch` each tensor is copied when it is saved and when it is needed, and computation waits. With
it, copies run alongside the computation: a block's copies to the host have until the end of the next block's
forward pass; copies back start with the backward pass of the block above, one block ahead. The last block's
tensors stay, because the backward pass starts with them. So the device has the tensors of at most two blocks.

Weights and buffers are never copied; what several operations save is copied once. On CUDA, without
`prefetch`, it is torch's `save_on_cpu`, which also copies weights, and a tensor as often as it is saved.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from harness.instruments.torch_internals import over_storage, storage_key
from suites.training.declared import ActivationOffloadSettings
from suites.training.host_memory import (
    Carrier,
    CopyThread,
    HostMemory,
    Resources,
    SideStream,
    SimulatedHost,
    Synchronous,
)
from suites.training.models.model import blocks_of
from suites.training.step import TrainingStep


def apply(step: TrainingStep, settings: ActivationOffloadSettings) -> TrainingStep:
    """Return the step with its blocks' activations on the host."""
    place = "host_prefetched" if settings.prefetch else "host"
    return replace(
        step,
        features=replace(step.features, activations_on=place),
        wraps=(*step.wraps, partial(wrap, settings)),
        layers_alike=step.layers_alike and not settings.prefetch,  # whose last layer keeps its tensors
    )


def wrap(settings: ActivationOffloadSettings, model: nn.Module, resources: Resources) -> nn.Module:
    """Make the blocks of `model` put on the host what they save."""
    host = resources.host
    if settings.prefetch:
        Ahead(model, Shelf(model, host, carrier_of(host)))
        return model
    make = hooks_to(host, model)
    for block in blocks_of(model):
        block.forward = partial(within, make, block.forward)
    return model


def hooks_to(host: HostMemory, model: nn.Module) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the hooks of a forward pass of `model` whose saved tensors go to the host."""
    if isinstance(host, SimulatedHost) and host.cuda:
        return partial(saved_tensors_hooks, host.keep, copied_up)
    return partial(on_cpu, host) if host.device.type == "cuda" else Shelf(model, host, Synchronous()).hooks


def carrier_of(host: HostMemory) -> Carrier:
    """Return what copies alongside the computation; a simulated copy takes as long as it may."""
    if isinstance(host, SimulatedHost):
        return Synchronous(late=True)
    return SideStream(host) if host.device.type == "cuda" else CopyThread(host)


def copied_up(saved: Tensor) -> Tensor:
    """Return a copy on the device."""
    return torch.empty(saved.shape, dtype=saved.dtype).copy_(saved)


def within(
    make: Callable[[], AbstractContextManager[Any]],
    forward: Callable[..., Tensor],
    *arguments: Any,
    **named: Any,
) -> Tensor:
    """Return a block's forward pass whose saved tensors go through its hooks."""
    with make():
        return forward(*arguments, **named)


def on_cpu(host: HostMemory) -> saved_tensors_hooks:
    """Return torch's own hooks into page-locked memory, which `host` counts."""
    hooks = save_on_cpu(pin_memory=True)
    pack: Callable[[Tensor], tuple[torch.device, Tensor]] = hooks.pack_hook

    def counted(tensor: Tensor) -> tuple[torch.device, Tensor]:
        device, saved = pack(tensor)
        host.note(saved)
        return device, saved

    hooks.pack_hook = counted
    return hooks


Stores = list["weakref.ref[Stored]"]
"""What one block saved, in order; each entry lives as long as the graph needs it."""


class Ahead:
    """Offload what all blocks but the last save, one behind the forward pass, one ahead of the backward."""

    def __init__(self, model: nn.Module, shelf: Shelf) -> None:
        blocks = blocks_of(model)
        self.shelf, self.blocks = shelf, len(blocks)
        self._before: Stores = []  # what the block before saved
        self._going: deque[tuple[int, Stored]] = deque()  # down, by number of block
        for number, block in enumerate(blocks):
            block.forward = partial(self.run, number, block.forward)

    def run(self, number: int, forward: Callable[..., Tensor], *arguments: Any, **named: Any) -> Tensor:
        """Run the forward pass of a block."""
        if number == 0:
            self._release_below(self.blocks)  # of an interrupted pass
            self._before = []
        mine: Stores = []
        if number < self.blocks - 1:
            storing = partial(self.shelf.storing, partial(self._down, number, mine))
            output = within(storing, forward, *arguments, **named)
        else:
            output = forward(*arguments, **named)
        self._release_below(number)
        if output.requires_grad:
            output.register_hook(partial(fetch, self._before))  # type: ignore[no-untyped-call]
        self._before = mine
        return output

    def _down(self, number: int, mine: Stores, stored: Stored) -> None:
        mine.append(weakref.ref(stored))
        self._going.append((number, stored))
        self._release_below(0)

    def _release_below(self, below: int) -> None:
        """Release the device's copies of what is on the host, for blocks below that number."""
        while self._going and (self._going[0][0] < below or self._going[0][1].copy.over()):
            self._going.popleft()[1].release()


def fetch(stores: Iterable[weakref.ref[Stored]], gradient: Tensor) -> None:
    """Start copying up what a block saved, the last first, as its backward pass needs it."""
    for reference in reversed(list(stores)):
        stored = reference()
        if stored is not None:
            stored.fetch()


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
        """Return hooks for a block's forward pass: what it saves goes down at once and up when needed."""
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

    It is freed with the last operation that saved it.
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


def unpack(saved: Tensor | Saved) -> Tensor:
    """Return what `Shelf.storing` packed."""
    if not isinstance(saved, Saved):
        return saved
    above = saved.stored.on_device()
    storage = above.untyped_storage()
    return over_storage(storage, saved.dtype, above.device, saved.offset, saved.shape, saved.stride)


def of_a_weight(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter, a view of one, or one cast for a product."""
    node: Any = tensor.grad_fn
    if node is None:
        return tensor.requires_grad
    while type(node).__name__ in OF_A_WEIGHT:
        node = node.next_functions[0][0]
    return type(node).__name__ == "AccumulateGrad"
