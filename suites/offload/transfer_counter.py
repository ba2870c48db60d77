"""Bytes that cross between the device and the tier below it, counted per operation while a step runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suites.training.host_memory import HostMemory as Host
from suites.training.host_memory import address_of

COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default)


class TransferCounter(TorchDispatchMode):
    """Counts inside the block: `up_B` from the host to the device, `down_B` in the other direction.

    An operation that reads from one tier and writes to the other moves what it reads, each part of a storage
    once; a copy between types moves the target's bytes, because torch converts before it sends
    (ATen/native/cuda/Copy.cu). Operations on one tier move nothing, nor does code outside of torch's
    operations, such as an optimizer in C++ on the host's tensors. The host counts what other threads copy.
    """

    def __init__(self, host: Host) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.host = host
        self.up_B, self.down_B = -host.up_B, -host.down_B

    def __exit__(self, *raised: Any) -> None:
        """Add what other threads copied meanwhile."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.up_B += self.host.up_B
        self.down_B += self.host.down_B

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and count what crossed."""
        if any(issubclass(one, DTensor) for one in types):  # operations on its parts are seen
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func in COPIES:
            for target, source in _pairs(args[0], args[1]):
                self._cross(target, (source,), min(target.nbytes, source.numel() * target.itemsize))
            return result
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        targets = list(_written(func, args, kwargs or {})) or [
            one for one in tree_leaves(result) if isinstance(one, Tensor)
        ]
        if targets:
            known = {address_of(one) for one in targets}
            sources = {part_of(one): one for one in given if address_of(one) not in known}
            self._cross(targets[0], list(sources.values()))
        return result

    def _cross(self, target: Tensor, sources: Sequence[Tensor], size_B: int | None = None) -> None:
        down = self.host.holds(target)
        moved_B = sum(
            one.nbytes if size_B is None else size_B
            for one in sources
            if self.host.holds(one) != down and one.ndim > 0
        )
        if down:
            self.down_B += moved_B
        else:
            self.up_B += moved_B


def part_of(tensor: Tensor) -> tuple[int, int, int]:
    """Return the address of a tensor's storage, and which part of it the tensor is."""
    return address_of(tensor), int(tensor.storage_offset()), tensor.numel()


def _pairs(targets: Any, sources: Any) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(targets, Tensor):
        yield targets, sources
    else:
        yield from zip(targets, sources, strict=True)


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Return the arguments that the operation writes, by its schema."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (one for one in tree_leaves(value) if isinstance(one, Tensor))
