"""Which executor the start of this process calls for, and what surrounds a command under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def executor_context() -> Iterator[None]:
    """Surround a command with what its executor needs of this process; raises ExecutorError."""
    from harness.sweep.executors import torchrun

    here = torchrun.launched()
    if here is None:
        yield
        return
    with torchrun.keep_ranks(here):
        yield
