"""What autograd does in place in a real run but out of place under a dispatch mode, for `fake_tensors`.

Under any mode `isTensorSubclassLike` is true of every tensor (ATen/TensorSubclassLikeUtils.h), and autograd
writes into none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.instruments import torch_internals

FAN_IN = "aten::add.Tensor"

SCATTERED = {
    "aten::index_put": "index",  # index_backward, FunctionsManual.cpp
    "aten::scatter_add": "gather",  # gather_backward, TensorAdvancedIndexing.cpp
    "aten::index_add": "indexselect",  # index_select_backward_symint, the same
}
"""Operations into zeros that a derivative has just made, and the operation whose derivative uses them."""


def writes_in_place(operation: Any, args: Sequence[Any]) -> bool:
    """Return whether a real run writes the operation's result over its first argument.

    It does so only if nothing else uses that argument. The sum of two gradients: `accumulate` in
    torch/csrc/autograd/input_buffer.cpp adds in place if gradients are not recorded and the tensor is dense,
    without overlap, and owned by the buffer alone, with its storage; a view (such as the gradient of a linear
    layer's weight) shares its storage. The caller sees the last when the storage goes before the next
    operation. A derivative in C++ that itself adds out of place to its own tensor is not distinguished.
    """
    name = operation.name()
    derivative = SCATTERED.get(name)
    if (derivative is None and name != FAN_IN) or torch.is_grad_enabled() or not args[0].numel():
        return False
    if not torch_internals.called_by_autograd():
        return False  # by Python; or by DTensor, which is a subclass in a real run too
    if derivative is not None:
        return torch_internals.derivative_of() == derivative
    return isinstance(args[1], torch.Tensor) and not args[0]._is_view() and is_dense(args[0])


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's elements fill a stretch of memory, none twice, in any order of axes."""
    filled = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != filled:
            return False
        filled *= size
    return True
