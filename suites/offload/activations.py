"""What becomes of activations between forward and backward pass: kept, made again, or put on the host.

A rank has its model changed so before its engine wraps it; names, parameters and results stay as they are.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from suites.model import Transformer
from suites.offload.host_memory import Host
from suites.offload.transfer import AtOnce, Carrier, SideStream, Thread

SMALL_B = 4096
"""Storages of fewer bytes stay on the device: a copy of less than a page costs more than it frees."""

OF_A_WEIGHT = frozenset({"TBackward0", "TransposeBackward0", "ToCopyBackward0"})
"""What is done to a weight before a product: turned, and cast by autocast, which keeps the cast itself."""


def place(model: Transformer, how: str, host: Host) -> None:
    """Change `model` so that its blocks' activations are kept | recomputed | offloaded | offloaded_ahead.

    `recomputed`: of each block its input alone is kept (arXiv 1604.06174). `offloaded`: each tensor is copied
    where it is saved and where it is asked for, and computation waits. `offloaded_ahead`: copies run beside
    the computation. Down, a block's have until the next block's forward pass ends; up, they begin with the
    backward pass of the block above, one block ahead. The last block's stay, for the backward pass begins
    with them. So the device holds what two blocks saved, at most.

    Weights and buffers are never copied; what several operations save is copied once. On CUDA `offloaded` is
    torch's `save_on_cpu` as it stands, which copies weights too, and a tensor as often as it is saved.

    Raises ValueError for any other `how`.
    """
    if how == "recomputed":
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    elif how == "offloaded":
        make = partial(on_cpu, host) if host.device.type == "cuda" else Shelf(model, host, AtOnce()).hooks
        for block in model.blocks:
            block.forward = partial(within, make, block.forward)
    elif how == "offloaded_ahead":
        Ahead(model, Shelf(model, host, SideStream(host) if host.device.type == "cuda" else Thread(host)))
    elif how != "kept":
        raise ValueError(f"activations {how!r} are none of kept, recomputed, offloaded, offloaded_ahead")


def within(
    make: Callable[[], AbstractContextManager[Any]], forward: Callable[..., Tensor], *arguments: Any
) -> Tensor:
    """A block's forward pass whose saved tensors go through hooks of its own."""
    with make():
        return forward(*arguments)


def on_cpu(host: Host) -> saved_tensors_hooks:
    """torch's own hooks into page-locked memory, which `host` counts."""
    hooks = save_on_cpu(pin_memory=True)
    pack: Callable[[Tensor], tuple[torch.device, Tensor]] = hooks.pack_hook

    def counted(tensor: Tensor) -> tuple[torch.device, Tensor]:
        device, saved = pack(tensor)
        host.note(saved)
        return device, saved

    hooks.pack_hook = counted
    return hooks


class Shelf:
    """Host memory for a model's saved storages, used again from step to step."""

    def __init__(self, model: nn.Module, host: Host, carrier: Carrier) -> None:
        self.model, self.host, self.carrier = model, host, carrier
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)  # by size

    def hooks(self) -> AbstractContextManager[None]:
        """For one block's forward pass: what is saved in it goes down at once and comes up when asked for."""
        return self.storing(lambda stored: stored.let_go())

    @contextmanager
    def storing(self, on_new: Callable[[Stored], None]) -> Iterator[None]:
        """Within it each storage that autograd saves is put here once; `on_new` is told of it."""
        known: dict[tuple[StorageWeakRef, int], Stored] = {}
        fixed = {one.untyped_storage().data_ptr() for one in self.model.buffers()}

        def pack(tensor: Tensor) -> Tensor | Saved:
            storage = tensor.untyped_storage()
            if storage.data_ptr() in fixed or self._stays(tensor):
                # A parameter itself, for an engine may change its data; no result, which holds the graph.
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
            known.clear()  # the graph keeps `pack`, and must not keep all by it

    def _stays(self, tensor: Tensor) -> bool:
        small = tensor.untyped_storage().nbytes() < SMALL_B
        return small or tensor.device.type != self.host.device.type or of_a_weight(tensor)

    def _store(self, storage: torch.UntypedStorage) -> Stored:
        size_B = storage.nbytes()
        free = self._free[size_B]
        below = free.pop() if free else self.host.empty((size_B,), torch.uint8)
        above = torch.empty(0, dtype=torch.uint8, device=self.host.device).set_(storage)
        return Stored(below, above, self.carrier, self._free)


class Stored:
    """The bytes of a storage: `above` on the device, `below` on the host, or on the way.

    It goes with the last of the operations that saved it; their backward passes run one after the other, or
    nearly so, and share what came up.
    """

    def __init__(self, below: Tensor, above: Tensor, carrier: Carrier, free: dict[int, list[Tensor]]) -> None:
        self.below, self.carrier, self._free, self.device = below, carrier, free, above.device
        self.above: Tensor | None = above
        self.copy = carrier.copy(below, above)

    def let_go(self) -> None:
        """The device's bytes, once they are copied."""
        self.copy.wait()
        self.above = None

    def fetch(self) -> None:
        """Begin to bring the bytes up, where they are not."""
        if self.above is None:
            self.above = torch.empty(self.below.shape, dtype=torch.uint8, device=self.device)
            self.copy = self.carrier.copy(self.above, self.below)

    def on_device(self) -> Tensor:
        """All of them, (B,) of uint8."""
        self.fetch()
        self.copy.wait()
        assert self.above is not None
        return self.above

    def __del__(self) -> None:
        if hasattr(self, "copy"):
            self.let_go()
            self._free[self.below.nbytes].append(self.below)


class Saved(NamedTuple):
    """A saved tensor: a view of what is stored."""

    stored: Stored
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    def tensor(self) -> Tensor:
        """The tensor again, on the device."""
        above = self.stored.on_device()
        empty = torch.empty(0, dtype=self.dtype, device=above.device)
        return empty.set_(above.untyped_storage(), self.offset, self.shape, self.stride)


def unpack(saved: Tensor | Saved) -> Tensor:
    """What `Shelf.storing` packed."""
    return saved.tensor() if isinstance(saved, Saved) else saved


def of_a_weight(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, a view of one, or one as it is cast for a product."""
    node: Any = tensor.grad_fn
    if node is None:
        return tensor.requires_grad
    while type(node).__name__ in OF_A_WEIGHT:
        node = node.next_functions[0][0]
    return type(node).__name__ == "AccumulateGrad"


Stores = list["weakref.ref[Stored]"]
"""What one block saved, in order; each lives as long as the graph needs it."""


class Ahead:
    """Has all blocks but the last put on a shelf what they save, one block behind and one ahead."""

    def __init__(self, model: Transformer, shelf: Shelf) -> None:
        self.shelf, self.blocks = shelf, len(model.blocks)
        self._before: Stores = []  # what the block before saved
        self._going: deque[tuple[int, Stored]] = deque()  # down, by number of block
        for number, block in enumerate(model.blocks):
            block.forward = partial(self.run, number, block.forward)

    def run(self, number: int, forward: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """The forward pass of a block."""
        if number == 0:
            self._let_go(self.blocks)  # of a pass that broke off
            self._before = []
        mine: Stores = []
        if number < self.blocks - 1:
            output = within(
                lambda: self.shelf.storing(partial(self._down, number, mine)), forward, *arguments
            )
        else:
            output = forward(*arguments)
        self._let_go(number)
        if output.requires_grad:
            output.register_hook(partial(fetch, self._before))  # type: ignore[no-untyped-call]
        self._before = mine
        return output

    def _down(self, number: int, mine: Stores, stored: Stored) -> None:
        mine.append(weakref.ref(stored))
        self._going.append((number, stored))
        self._let_go(0)

    def _let_go(self, below: int) -> None:
        """Of all that is down, and of what belongs to blocks below that number."""
        while self._going and (self._going[0][0] < below or self._going[0][1].copy.over()):
            self._going.popleft()[1].let_go()


def fetch(stores: Iterable[weakref.ref[Stored]], gradient: Tensor) -> None:
    """Begin to bring up what a block saved, the last first: as its backward pass will ask for it."""
    for reference in reversed(list(stores)):
        stored = reference()
        if stored is not None:
            stored.fetch()
