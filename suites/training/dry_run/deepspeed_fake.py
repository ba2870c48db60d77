"""Let deepspeed's engine run on fake tensors, from which no number can be read.

The engine gets 1 (norms) or 0 (overflow flags); its checks that ranks agree are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from suites.training.dry_run.plain_numbers import PlainNumbers


def values_not_read(fake: bool) -> AbstractContextManager[Any]:
    """Return plain numbers inside the block where fake tensors are read; ranks are taken to agree."""
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
