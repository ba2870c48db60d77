"""What operations hold on the CPU while they run because their arguments' types differ, or for want of a
fused kernel.

`cast_temporary_bytes` is a workspace of `harness.instruments.fake_tensors.StorageLog`.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def cast_temporary_bytes(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Most bytes that `operation` holds beside its result on the CPU."""
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
        return int(result.numel() + rows)  # which scores are -inf, and which rows are all so: one byte each
    return 0


def _of_numbers(value: Any) -> bool:
    return not isinstance(value, list) or not any(isinstance(one, Tensor) for one in value)


def _number_bytes(tensor: Tensor) -> int:
    """A number is made a tensor of one fp64, then one of the other argument's type."""
    return 8 + tensor.element_size()


def _cast_bytes(argument: Tensor, result: Tensor) -> int:
    """A copy in the result's type of an argument in another: TensorIterator makes one on the CPU alone.

    Source: ATen/TensorIterator.cpp, `compute_types` (casts of operands to the common type on the CPU).
    """
    if argument.dtype == result.dtype or argument.dim() == 0:
        return 0
    return argument.numel() * result.element_size()
