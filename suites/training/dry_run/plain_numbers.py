"""Let code that reads numbers from tensors run on fake ones, from which none can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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


def values_not_read(fake: bool) -> AbstractContextManager[Any]:
    """Return plain numbers inside the block where fake tensors are read by deepspeed's engine.

    It gets 1 (norms) or 0 (overflow flags); its checks that ranks agree are skipped.
    """
    return _values_not_read() if fake else nullcontext()


@contextmanager
def _values_not_read() -> Iterator[None]:
    from deepspeed.runtime.zero import partitioned_param_coordinator

    original = partitioned_param_coordinator.assert_ints_same_as_other_ranks
    partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda ints: None
    try:
        with PlainNumbers():  # type: ignore[no-untyped-call]
            yield
    finally:
        partitioned_param_coordinator.assert_ints_same_as_other_ranks = original
