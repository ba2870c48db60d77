"""Runs cells in children of rank 0 and lets them use every rank that torchrun or srun started.

`keep_ranks` surrounds a whole command: there rank 0 keeps the other ranks, and these never leave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.instruments.distributed.remote_ranks import Launch, LaunchError, attended, launch, serve
from harness.sweep.executors import ExecutorError
from harness.sweep.executors.local import LocalExecutor


def launched() -> Launch | None:
    """Return how a launcher started this process, None where none did; raises ExecutorError."""
    try:
        return launch()
    except LaunchError as error:
        raise ExecutorError(str(error)) from None


@contextmanager
def keep_ranks(here: Launch) -> Iterator[None]:
    """Keep the other ranks for as long as this lasts; of these, each serves in here and does not return.

    Raises ExecutorError where the ranks cannot meet.
    """
    if here.rank:
        serve(here)
    try:
        with attended(here):
            yield
    except LaunchError as error:
        raise ExecutorError(str(error)) from None


def create(folder: Path, workers: int = 1) -> LocalExecutor:
    """Return the executor for a results folder; raises ExecutorError where no launcher started this."""
    here = launched()
    if here is None:
        raise ExecutorError(
            "executor=torchrun: no launcher started this process; run `torchrun ... -m harness` or `srun ...`"
        )
    return LocalExecutor(folder, workers, ranks=f"{here.nodes} x {here.per_node}")


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
