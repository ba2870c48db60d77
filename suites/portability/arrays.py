"""Convert tensors to NumPy arrays that engines take, and their results back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def array_of(tensor: Tensor) -> Any:
    """Return a tensor as an array on the same memory; bf16 in ml_dtypes' type, which JAX's packages bring."""
    plain = tensor.detach().contiguous()
    if plain.dtype != torch.bfloat16:
        return plain.numpy()
    import ml_dtypes

    return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def tensor_of(value: Any) -> Tensor:
    """Return an engine's result as a tensor of its own type."""
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def tensors_of(values: Sequence[Any]) -> list[Tensor]:
    """Return an engine's results as tensors."""
    return [tensor_of(one) for one in values]
