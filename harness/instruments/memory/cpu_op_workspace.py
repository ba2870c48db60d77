"""Temporary memory inside CPU operations, which a dry run of results alone cannot see.

FSDP2's copies, casts of arguments whose types differ, and intermediates of operations without a fused kernel.
`host_workspace` is a workspace of `harness.instruments.memory.dry_run.fake_tensors.StorageLog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor

POINTWISE = frozenset(
    {
        "aten::add",
        "aten::add_",
        "aten::sub",
        "aten::sub_",
        "aten::mul",
        "aten::mul_",
        "aten::div",
        "aten::div_",
    }
)
FOREACH = frozenset({"aten::_foreach_add_", "aten::_foreach_mul_", "aten::_foreach_div_"})  # loops on the CPU


def host_workspace(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Return the bytes of a CPU operation beyond its results, where a rule gives them."""
    return copy_temporary_bytes(operation, arguments, result) or cast_temporary_bytes(
        operation, arguments, result
    )


def copy_temporary_bytes(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Return the most bytes of `operation` beyond its results; `arguments` with keywords last.

    `fsdp::all_gather_copy_in` and `fsdp::split_with_sizes_copy` need nothing, whatever the types.
    """
    if operation.namespace == "fsdp" and operation._opname == "chunk_cat":
        tensors, dim, chunks, out = arguments
        return chunk_cat_bytes(tensors, dim, chunks, out)
    return 0


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
    """Return whether `tensor` can be viewed as chunks along `dim` without a copy."""
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
        return (
            _number_bytes(result) if len(tensors) == 1 else sum(_cast_bytes(one, result) for one in tensors)
        )
    if name in FOREACH and isinstance(arguments[1], int | float | list):
        return _number_bytes(arguments[0][0]) if _of_numbers(arguments[1]) else 0
    if name == "aten::_safe_softmax":
        rows = result.numel() // max(result.shape[-1], 1)
        return int(result.numel() + rows)  # masks of -inf scores and of rows that are all -inf: one byte each
    return 0


def _of_numbers(value: Any) -> bool:
    return not isinstance(value, list) or not any(isinstance(one, Tensor) for one in value)


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
