"""The temporary memory of an operation, measured by running it once on real tensors.

Fake tensors show an operation's results alone. `harness.instruments.memory.dry_run.fake_tensors` notes calls
of the operations whose libraries take more, by rules of their own; here each distinct call is run on this
host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from harness.instruments.memory.allocator import memory_events, memory_profile
from harness.instruments.memory.bf16_products import fast_bf16_products

MOST_FLOP = 2e11
LARGEST_B = 256 * 1024**2
"""Largest arguments of a call that is run. Calls that are larger, or compute more, count as taking nothing:
what oneDNN takes is some MB per thread, whatever the size."""

NARROW = frozenset({torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2})
MATMULS = frozenset(
    {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"}
)  # oneDNN's, in 16 and 8 bits
ATTENTION = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    }
)

_MARK = "harness.workspace:"


class Tensorlike(NamedTuple):
    """A tensor's properties without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class OperationCall(NamedTuple):
    """An operation and its arguments, tensors as `Tensorlike`."""

    operation: Any
    leaves: tuple[Any, ...]
    spec: TreeSpec


def call_of(operation: Any, args: Sequence[Any], kwargs: Any) -> OperationCall:
    """Return the call, without its tensors' values."""
    leaves, spec = tree_flatten((tuple(args), dict(kwargs or {})))
    return OperationCall(operation, tuple(_describe(leaf) for leaf in leaves), spec)


def takes_more(operation: Any, args: Sequence[Any]) -> bool:
    """Return whether the operation is one whose workspace must be measured."""
    name = operation.name().partition(".")[0]
    if name in MATMULS:
        return any(isinstance(one, torch.Tensor) and one.dtype in NARROW for one in args)
    return name in ATTENTION


def _describe(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return Tensorlike(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype)
    return leaf


def is_small(call: OperationCall) -> bool:
    """Return whether the call is small enough to be run."""
    tensors = [one for one in call.leaves if isinstance(one, Tensorlike) and one.shape]  # no scales
    size_B = sum(prod(one.shape) * one.dtype.itemsize for one in tensors)
    flop = 2.0 * prod(tensors[-2].shape) * tensors[-1].shape[-1] if len(tensors) >= 2 else 0.0
    return size_B <= LARGEST_B and flop <= MOST_FLOP


_known: dict[tuple[int, OperationCall], int] = {}


def workspaces(calls: Iterable[OperationCall]) -> dict[OperationCall, int]:
    """Return the most bytes of each call beyond its results, here and with the current number of threads."""
    threads = torch.get_num_threads()
    calls = list(dict.fromkeys(calls))
    new = [call for call in calls if (threads, call) not in _known and is_small(call)]
    if new:
        _known.update({(threads, call): size_B for call, size_B in zip(new, _ask(new), strict=True)})
    return {call: _known.get((threads, call), 0) for call in calls}


def _ask(calls: Sequence[OperationCall]) -> list[int]:
    """Run each call twice, the second time under the allocator's profiler.

    Calls that `fast_bf16_products` replaces are not run: a replacement allocates its result alone.
    """
    with torch.no_grad(), fast_bf16_products() as products, memory_profile() as profile:
        for call in calls:
            args, kwargs = tree_unflatten([_real(leaf) for leaf in call.leaves], call.spec)
            replaced = products is not None and products.replaces(call.operation, args)
            if not replaced:
                fill((args, kwargs))
                call.operation(*args, **kwargs)
            with torch.profiler.record_function(f"{_MARK}begin"):
                pass
            result = None if replaced else call.operation(*args, **kwargs)
            with torch.profiler.record_function(f"{_MARK}end"):
                pass
            del args, kwargs, result
    return _read(profile)


def _real(leaf: Any) -> Any:
    """Return a tensor for a `Tensorlike`, with no values yet; other leaves as they are."""
    if not isinstance(leaf, Tensorlike):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype)


def fill(arguments: Any) -> None:
    """Give tensors values that any operation accepts."""
    for one in tree_leaves(arguments):
        if isinstance(one, torch.Tensor):
            one.fill_(0.5 if one.dtype.is_floating_point else 0)


def _read(profile: Any) -> list[int]:
    """Return, for each call, the most bytes between its marks, less those still allocated at its end."""
    peaks: list[int] = []
    live_B = most_B = 0
    for name, delta_B in memory_events(profile, _MARK):
        if name.endswith("begin"):
            live_B = most_B = 0
        elif name.endswith("end"):
            peaks.append(most_B - max(live_B, 0))
        else:
            live_B += delta_B
            most_B = max(most_B, live_B)
    return peaks
