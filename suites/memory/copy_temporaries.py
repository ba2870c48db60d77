"""What FSDP2's copies hold on the CPU while they run, which a walk of results alone cannot see.

`copy_temporary_bytes` is a workspace of `harness.instruments.fake_tensors.StorageLog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor


def copy_temporary_bytes(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Most bytes that `operation` holds beside its results; `arguments` with keywords last.

    `fsdp::all_gather_copy_in` and `fsdp::split_with_sizes_copy` hold nothing, whatever the types.
    """
    if operation.namespace == "fsdp" and operation._opname == "chunk_cat":
        tensors, dim, chunks, out = arguments
        return chunk_cat_bytes(tensors, dim, chunks, out)
    return 0


def chunk_cat_bytes(tensors: Sequence[Tensor], dim: int, chunks: int, out: Tensor) -> int:
    """Bytes that `torch._chunk_cat` holds: copies of the tensors that need one, then a slice each in turn.

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
    """Whether `tensor` can be seen as chunks along `dim` without a copy."""
    try:
        tensor.view(*tensor.shape[:dim], chunks, -1)
    except RuntimeError:
        return False
    return True
