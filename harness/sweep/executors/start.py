"""Which executor the start of this process calls for, and what surrounds a command under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def automatic() -> str:
    """Return the executor where none is named: `torchrun` under a launcher of ranks, else `local`."""
    from harness.sweep.executors import torchrun

    return "local" if torchrun.launched() is None else "torchrun"


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
