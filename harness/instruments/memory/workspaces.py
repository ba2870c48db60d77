"""The temporary memory inside an operation, which a dry run of results alone cannot see.

`harness.instruments.memory.dry_run.fake_tensors` notes calls of the operations whose libraries take more, by
rules of their own; here each distinct call is run once on real tensors of this host. `host_workspace` has
rules for others: FSDP2's copies, casts of arguments whose types differ, and intermediates of operations
without a fused kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from harness.instruments.memory.allocator import memory_events, memory_profile
from harness.instruments.memory.bf16_products import fast_bf16_products

MOST_FLOP = 2e11
LARGEST_B = 256 * 1024**2
"""Largest arguments of a call that is run. Calls that are larger, or compute more, count as taking nothing:
what oneDNN takes is some MB per thread, whatever the size."""

NARROW = frozenset({torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2})
# oneDNN's, in 16 and 8 bits
MATMULS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"})
_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
ATTENTION = frozenset({_ATTENTION, f"{_ATTENTION}_backward"})
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
    described = (
        Tensorlike(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    )
    return OperationCall(operation, tuple(described), spec)


def takes_more(operation: Any, args: Sequence[Any]) -> bool:
    """Return whether the operation is one whose workspace must be measured."""
    name = operation.name().partition(".")[0]
    if name in MATMULS:
        return any(isinstance(one, torch.Tensor) and one.dtype in NARROW for one in args)
    return name in ATTENTION


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
        _known.update(zip(((threads, call) for call in new), _ask(new), strict=True))
    return {call: _known.get((threads, call), 0) for call in calls}


def _ask(calls: Sequence[OperationCall]) -> list[int]:
    """Run each call twice, the second time profiled, but none that a bf16 replacement would compute."""
    with torch.no_grad(), fast_bf16_products() as products, memory_profile() as profile:
        for call in calls:
            args, kwargs = tree_unflatten([_real(leaf) for leaf in call.leaves], call.spec)
            replaced = products is not None and products.replaces(call.operation, args)
            if not replaced:
                call.operation(*args, **kwargs)
            with torch.profiler.record_function(f"{_MARK}begin"):
                pass
            result = None if replaced else call.operation(*args, **kwargs)
            with torch.profiler.record_function(f"{_MARK}end"):
                pass
            del args, kwargs, result
    return _read(profile)


def _real(leaf: Any) -> Any:
    """Return a tensor for a `Tensorlike`, of values that any operation accepts; other leaves as they are."""
    if not isinstance(leaf, Tensorlike):
        return leaf
    tensor = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype)
    return tensor.fill_(0.5 if leaf.dtype.is_floating_point else 0)


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


POINTWISE = frozenset(f"aten::{name}{end}" for name in ("add", "sub", "mul", "div") for end in ("", "_"))
FOREACH = frozenset({"aten::_foreach_add_", "aten::_foreach_mul_", "aten::_foreach_div_"})  # loops on the CPU


def host_workspace(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Return the bytes of a CPU operation beyond its results, where a rule gives them; keywords are last.

    `fsdp::all_gather_copy_in` and `fsdp::split_with_sizes_copy` need nothing, whatever the types.
    """
    if operation.namespace == "fsdp":
        return chunk_cat_bytes(*arguments) if operation._opname == "chunk_cat" else 0
    return cast_temporary_bytes(operation, arguments, result)


def chunk_cat_bytes(tensors: Sequence[Tensor], dim: int, chunks: int, out: Tensor) -> int:
    """Return the temporary bytes of `torch._chunk_cat`: copies of tensors that need one, then a slice each.

    Source: ATen/native/TensorShape.cpp, `_pad_chunk` (a padded copy where `chunks` does not divide the size,
    a contiguous one where chunks are no view), then `cat_out` (a slice in the old type where types differ).
    """
    held_B, slice_B = 0, 0
    for tensor in tensors:
        rows = tensor.shape[dim]
        padded = -(-rows // chunks) * chunks
        padded_B = prod(tensor.shape[:dim]) * padded * prod(tensor.shape[dim + 1 :]) * tensor.element_size()
        if padded != rows or not _is_view(tensor, dim, chunks):
            held_B += padded_B
        if tensor.dtype != out.dtype:
            slice_B = max(slice_B, padded_B)
    return held_B + slice_B


def _is_view(tensor: Tensor, dim: int, chunks: int) -> bool:
    try:
        tensor.view(*tensor.shape[:dim], chunks, -1)
    except RuntimeError:
        return False
    return True


def cast_temporary_bytes(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Return the most bytes of `operation` beyond its result on the CPU."""
    name = operation.name().partition(".")[0]
    if name in POINTWISE and isinstance(result, Tensor):
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        casts_B = sum(_cast_bytes(one, result) for one in tensors)
        return _number_bytes(result) if len(tensors) == 1 else casts_B
    if name in FOREACH and isinstance(arguments[1], int | float | list):
        listed = arguments[1] if isinstance(arguments[1], list) else []
        return 0 if any(isinstance(one, Tensor) for one in listed) else _number_bytes(arguments[0][0])
    if name == "aten::_safe_softmax":
        rows = result.numel() // max(result.shape[-1], 1)
        return int(result.numel() + rows)  # masks of -inf scores and of rows that are all -inf: one byte each
    return 0


def _number_bytes(tensor: Tensor) -> int:
    """Return the bytes of a number: a tensor of one fp64, then one of the other argument's type."""
    return 8 + tensor.element_size()


def _cast_bytes(argument: Tensor, result: Tensor) -> int:
    """Return the bytes of an argument's copy in the result's type.

    TensorIterator makes it on the CPU only. Source: ATen/TensorIterator.cpp, `compute_types` (casts of
    operands to the common type on the CPU).
    """
    if argument.dtype == result.dtype or argument.dim() == 0:
        return 0
    return argument.numel() * result.element_size()
