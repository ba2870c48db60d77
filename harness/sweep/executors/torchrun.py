"""Runs cells in children of rank 0 and lets them use every rank that torchrun or srun started."""

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
    """Surround a command: under a launcher, rank 0 keeps the other ranks, and these never leave it.

    Raises ExecutorError where the ranks cannot meet.
    """
    here = launched()
    if here is not None and here.rank:
        serve(here)
    try:
        with attended(here):
            yield
    except LaunchError as error:
        raise ExecutorError(str(error)) from None
