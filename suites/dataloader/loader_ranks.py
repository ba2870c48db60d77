"""The processes of one cell: Ray where the loader needs it, ranks, and whatever these start.

It imports nothing large, as Ray's actors import this package.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import psutil

from harness.instruments.distributed.rank_pool import RankLocation, RankPool, RankTimeout
from harness.instruments.distributed.ray_session import OBJECT_STORE_B, RETURNED, RaySession
from harness.instruments.memory.process_memory import nameless_files_B, pss_B, tree, unmapped_shared_B
from harness.records import Unavailable
from suites.dataloader.batch import INSTALL, LoaderSpec, library


def loader_module(name: str) -> Any:
    """Return a loader's module; raises `Unavailable` where a library of it is missing."""
    try:
        return importlib.import_module(f"suites.dataloader.loaders.{name}")
    except ImportError as error:
        raise Unavailable(f"the loader {name} cannot be imported ({error}): {INSTALL}") from error


ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **RETURNED}
LOOPBACK = "127.0.0.1"
ON_RANK = "suites.dataloader.on_rank"

TIMEOUT_S = 400.0  # timeout of one call on the ranks
ENDED_WITHIN_S = 10.0  # processes of a loader that live longer than its ranks by this are killed


class LoaderMemory(NamedTuple):
    """Proportional set size of all processes, shared memory that none has mapped, and temporary files."""

    pss_B: int
    unmapped_B: int
    files_B: int


class LoaderRanks:
    """Fresh ranks with a loader's libraries imported, and a fresh Ray session where it needs one.

    `ray_start_s`: seconds that Ray took to start; 0 without. `idle_B`: the ranks' memory before they load.
    """

    def __init__(self, loader: str, spec: LoaderSpec, libraries: Sequence[str] = ()) -> None:
        self._loader = loader
        self._before = set(tree(os.getpid()))
        self._ray: RaySession | None = None
        self._started: dict[int, psutil.Process] = {}
        self.ray_start_s = 0.0
        with ExitStack() as stack:
            stack.callback(self._end_all)
            module = loader_module(loader)
            if getattr(module, "NEEDS_RAY", False):
                spec = self._with_ray(spec, getattr(module, "LEAST_OBJECT_STORE_B", OBJECT_STORE_B))
                stack.callback(self._leave_ray)
            ranks = spec.dp_size * spec.cp_size
            self.pool = stack.enter_context(
                RankPool([RankLocation((), ALONE)] * ranks, LOOPBACK, timeout_s=TIMEOUT_S)
            )
            self.call("begin", loader=loader, spec=asdict(spec), libraries=list(libraries))
            self.idle_B = pss_B(pid for rank in self.pool.pids for pid in tree(rank))
            self._stack = stack.pop_all()

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Return what `function` of `on_rank` returned on each rank."""
        return self.pool.call(f"{ON_RANK}:{function}", **arguments)

    def first_batch(self, within_s: float) -> float:
        """Return the seconds to the slowest rank's first batch; raises `RankTimeout` after `within_s`."""
        try:
            taken: list[float] = self.pool.call(f"{ON_RANK}:first_batch", within_s)
        except RankTimeout as error:
            raise RankTimeout(f"{self._loader}: no first batch in {within_s:g} s") from error
        return max(taken)

    def pids(self) -> list[int]:
        """Return all processes of the cell: ranks, Ray, and all that they have started."""
        found = {pid for rank in self.pool.pids for pid in tree(rank)}
        if self._ray is not None:
            found |= set(tree(os.getpid())) - self._before
        for pid in found - self._started.keys():
            with suppress(psutil.NoSuchProcess):
                self._started[pid] = psutil.Process(pid)
        return sorted(found)

    def memory(self) -> LoaderMemory:
        """Return what all processes take now."""
        pids = self.pids()
        return LoaderMemory(pss_B(pids), unmapped_shared_B(pids), nameless_files_B(pids))

    def close(self) -> None:
        """End the loader, the ranks, Ray, and every process that they have started."""
        try:
            if len(self.pool):
                self.pids()
                self.call("stop")
        finally:
            self._stack.close()

    def _with_ray(self, spec: LoaderSpec, object_store_B: int) -> LoaderSpec:
        library("ray")
        begin_s = time.perf_counter()
        self._ray = RaySession(object_store_B=object_store_B)
        self.ray_start_s = time.perf_counter() - begin_s
        return replace(spec, options={**spec.options, **self._ray.options})

    def _leave_ray(self) -> None:
        if self._ray is not None:
            self._ray.close()

    def _end_all(self) -> None:
        """Wait for processes that outlive their rank for a moment, then kill those that are left."""
        _, alive = psutil.wait_procs(list(self._started.values()), ENDED_WITHIN_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, ENDED_WITHIN_S)


LEAST_APART_S = 0.5  # seconds between two samples at least

SHARE = 0.02
"""Share of one core that sampling may take: the kernel walks all pages of a process, for seconds if large."""


class MemorySampler:
    """Calls `sample` again and again in a thread until `close`; `samples` are what it has returned."""

    def __init__(self, sample: Callable[[], LoaderMemory]) -> None:
        self.samples: list[LoaderMemory] = []
        self._sample, self._lock, self._stopped = sample, threading.Lock(), threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Add a sample now; raises what a sample before has raised."""
        with self._lock:
            if self._failed is not None:
                raise self._failed
            self.samples.append(self._sample())

    def close(self) -> None:
        """Sample no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = LEAST_APART_S
        while not self._stopped.wait(pause_s):
            begin_s = time.thread_time()
            with self._lock:
                try:
                    self.samples.append(self._sample())
                except Exception as error:
                    self._failed = error
                    return
            pause_s = max(LEAST_APART_S, (time.thread_time() - begin_s) / SHARE)
