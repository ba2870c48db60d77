"""The ranks of a cell: processes on this machine, started by the first call, and again after a failure.

The folder of a cell's files that represent host or disk is created by the cell and removed with it. Its name
identifies its owner, so that what a kill -9 left is removed by the next cell that uses the same folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.instruments.control_group import started_ticks
from harness.instruments.distributed.rank_pool import RankFailed, RankLocation, RankPool, RankTimeout
from harness.instruments.memory.process_memory import EXACT, SMALL_STACKS
from harness.records import IN_OTHER_PROCESS
from suites.offload import on_rank
from suites.offload.subject import Subject
from suites.offload.workload import Workload
from suites.training import on_rank as training_on_rank
from suites.training.shared_trainers import backend_of

PREFIX = "harness-swap"


def make(folder: str) -> str:
    """Remove folders of dead cells; return a new one in `folder` ("": the system's for temporary files)."""
    parent = Path(folder or tempfile.gettempdir())
    for old in parent.glob(f"{PREFIX}-*"):
        if _is_left(old.name):
            shutil.rmtree(old, ignore_errors=True)
    me = os.getpid()
    return tempfile.mkdtemp(prefix=f"{PREFIX}-{_boot()}-{me}-{started_ticks(me)}-", dir=parent)


def remove(path: str) -> None:
    """Remove the folder with its content."""
    shutil.rmtree(path, ignore_errors=True)


def _is_left(name: str) -> bool:
    """Return whether the process that made it is gone; other names are not ours."""
    parts = name.removeprefix(f"{PREFIX}-").split("-")
    if len(parts) != 4 or parts[0] != _boot() or not (parts[1].isdigit() and parts[2].isdigit()):
        return False
    return started_ticks(int(parts[1])) != int(parts[2])


def _boot() -> str:
    """Return an identifier of this machine's boot, which separates machines that share the folder."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


TIMEOUT_S = 300.0

COMPILE_S = 1200.0
"""deepspeed compiles its operators once per machine, at the first use."""


class Ranks:
    """`exact`: whether private memory is to follow what lives in it closely, which costs time."""

    def __init__(self, workload: Workload, exact: bool = False) -> None:
        self.workload = workload
        self._exact = exact
        self._pool: RankPool | None = None
        self._folder = ""

    def call(self, function: str, subject: Subject, **arguments: Any) -> list[Any]:
        """Return what `function` of `on_rank` returned on each rank."""
        managed = {} if subject.managed is None else {"managed": asdict(subject.managed)}
        with errors_marked():
            given = {"step": subject.step.described, "folder": self._ready(subject), **managed}
            return self._running.call(f"{on_rank.__name__}:{function}", **given, **arguments)

    def train(self, subject: Subject, function: str, **arguments: Any) -> list[Any]:
        """Return what `function` of `suites.training.on_rank` returned on each rank."""
        with errors_marked():
            folder = self._ready(subject)
            given = {"folder": folder} if function == "make" else {}
            return self._running.call(f"{training_on_rank.__name__}:{function}", **arguments, **given)

    @property
    def _running(self) -> RankPool:
        assert self._pool is not None
        return self._pool

    def _ready(self, subject: Subject) -> str:
        """Start the processes where none run; return the folder of their files."""
        if self._pool is None or len(self._pool) == 0:
            self.close()
            self._folder = make(self.workload.offload_dir)
            self._pool = self._start()
            self._pool.call(f"{training_on_rank.__name__}:use_ring")
            step = subject.step.described
            self._pool.call(f"{on_rank.__name__}:compile_operators", COMPILE_S, step=step)
        return self._folder

    def close(self) -> None:
        """End the processes, and remove their files; the next call starts others."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._folder:
            remove(self._folder)
            self._folder = ""

    def _start(self) -> RankPool:
        count = self.workload.dp_size
        backend = backend_of(count)
        threads = str(max(len(os.sched_getaffinity(0)) // count, 1))
        common = {"OMP_NUM_THREADS": threads, **(EXACT if self._exact else {})}
        command = SMALL_STACKS if self._exact else ()
        places = [RankLocation(command, {**common, "LOCAL_RANK": str(number)}) for number in range(count)]
        return RankPool(places, "127.0.0.1", backend, TIMEOUT_S)


@contextmanager
def errors_marked() -> Iterator[None]:
    """Mark what a rank raised, or its end, as no harm to this process."""
    try:
        yield
    except (RankFailed, RankTimeout, MemoryError) as error:
        setattr(error, IN_OTHER_PROCESS, True)
        raise
