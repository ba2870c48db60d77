"""The ranks that all variants of a workload share, one thread each on the CPU, with a quota for each.

Imposes speeds on ranks: a CPU quota for each, changed by a thread while they train.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

from harness.instruments.control_group import CpuQuota
from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from suites.clock_speed import on_rank
from suites.clock_speed.speed_model import Dwell
from suites.clock_speed.workload import Workload
from suites.training import on_rank as training_on_rank


class ImposedSpeeds:
    """A quota for each process; at speed 1 it may use `core_share` of a core. Raises `Unavailable`."""

    def __init__(self, pids: Sequence[int], core_share: float, period_s: float) -> None:
        self._core_share, self._period_s = core_share, period_s
        self._quotas: list[CpuQuota] = []
        self._set: list[float | None] = [None] * len(pids)
        with ExitStack() as stack:
            for pid in pids:
                quota = stack.enter_context(CpuQuota())
                quota.enter(pid)
                self._quotas.append(quota)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Remove the quotas."""
        self._stack.close()

    def impose(self, speeds: Sequence[float | None]) -> None:
        """Give each process its speed from now on; None: no limit. A speed that stays is not set again.

        Because the kernel starts a new period where a quota is set, with all of it unused.
        """
        for index, speed in enumerate(speeds):
            if speed != self._set[index]:
                share = None if speed is None else speed * self._core_share
                self._quotas[index].limit(share, self._period_s)
                self._set[index] = speed

    @contextmanager
    def following(self, dwells: Iterator[tuple[float, ...]], dwell_s: float) -> Iterator[list[Dwell]]:
        """Impose dwell after dwell in the block, each for `dwell_s`; 0: the first one throughout.

        The list gets what was imposed and when, by time.monotonic. At the end nothing is limited.
        """
        imposed: list[Dwell] = []
        ended = threading.Event()
        errors: list[BaseException] = []

        def follow(due_s: float) -> None:
            try:
                while not ended.wait(max(due_s - time.monotonic(), 0)):
                    self._next(dwells, imposed)
                    due_s += dwell_s
            except BaseException as error:
                errors.append(error)

        self._next(dwells, imposed)
        thread = threading.Thread(target=follow, args=(imposed[0].begin_s + dwell_s,), daemon=True)
        if dwell_s:
            thread.start()
        try:
            yield imposed
        finally:
            ended.set()
            if dwell_s:
                thread.join()
            self.impose([None] * len(self._quotas))
        if errors:
            raise errors[0]

    def _next(self, dwells: Iterator[tuple[float, ...]], imposed: list[Dwell]) -> None:
        speeds = next(dwells)
        self.impose(speeds)
        imposed.append(Dwell(time.monotonic(), speeds))


ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

Instants = Sequence[Mapping[str, Sequence[float]]]


class PacedRanks:
    """A pool with a speed for each rank, and the variants that have trainers on it."""

    def __init__(self, workload: Workload) -> None:
        self.variants: set[str] = set()
        self.pool = RankPool([RankLocation((), ALONE)] * workload.dp_size, "127.0.0.1")
        try:
            self.speeds = ImposedSpeeds(self.pool.pids, workload.core_share, workload.quota_period_s)
        except BaseException:
            self.pool.close()
            raise

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Return what `function` of this suite's `on_rank`, or of training's, returned on each rank."""
        module = on_rank if hasattr(on_rank, function) else training_on_rank
        return self.pool.call(f"{module.__name__}:{function}", **arguments)

    def paced(
        self, key: str, count: int, dwells: Iterator[tuple[float, ...]], dwell_s: float
    ) -> tuple[Instants, list[Dwell]]:
        """Run updates at imposed speeds; return their instants on each rank, and what was imposed."""
        with self.speeds.following(dwells, dwell_s) as imposed:
            instants = self.call("instants", key=key, count=count)
        return instants, imposed

    def leave(self, key: str) -> None:
        """Release a variant's trainer, if it has one; with the last of them the ranks end."""
        if key in self.variants:
            self.variants.remove(key)
            if len(self.pool):
                self.call("drop", key=key)
        if not self.variants:
            self.speeds.close()
            self.pool.close()
            shared.cache_clear()


@lru_cache(maxsize=1)
def shared(workload: Workload) -> PacedRanks:
    """Return the ranks of all variants of a workload."""
    return PacedRanks(workload)
