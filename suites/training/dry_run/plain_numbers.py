"""Let code that reads numbers from tensors run on fake ones, from which none can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class PlainNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes `tensor.item()` return 1.0, or 0 for integers and flags."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run any other operation unchanged."""
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 0
        return func(*args, **(kwargs or {}))
