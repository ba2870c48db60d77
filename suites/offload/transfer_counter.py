"""Bytes that cross between the device and the floor beneath it, counted as a step runs, by operation."""

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


class Traffic(TorchDispatchMode):
    """Within it, `up_B` counts what went from the host to the device, `down_B` the other way.

    An operation that reads from one floor and writes to the other moves what it reads, each part of a storage
    once; a copy between types moves the target's, for torch converts before it sends
    (ATen/native/cuda/Copy.cu). What an operation on one floor alone touches crosses nothing, nor does what no
    operation of torch does: an optimizer written in C++ that works on the host's tensors. What other threads
    carry the host counts.
    """

    def __init__(self, host: Host) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.host = host
        self.up_B, self.down_B = -host.up_B, -host.down_B

    def __exit__(self, *raised: Any) -> None:
        """Add what other threads carried meanwhile."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.up_B += self.host.up_B
        self.down_B += self.host.down_B

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and count what crossed."""
        if any(issubclass(one, DTensor) for one in types):  # what it does with its parts is seen
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
    """Where a tensor's storage begins, and which part of it the tensor is."""
    return address_of(tensor), int(tensor.storage_offset()), tensor.numel()


def _pairs(targets: Any, sources: Any) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(targets, Tensor):
        yield targets, sources
    else:
        yield from zip(targets, sources, strict=True)


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The arguments that the operation's schema says it writes."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (one for one in tree_leaves(value) if isinstance(one, Tensor))
