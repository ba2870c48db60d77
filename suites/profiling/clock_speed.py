"""The clock_speed suite: what a slow rank and unsteady speeds cost in synchronous training.

The baseline is DDP with every rank at full speed. Speeds are imposed on the ranks of a CPU by a quota of its
time, so every time is emulated. Each sample runs a few updates at full speed, then some at the variant's
speeds.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean

from harness.instruments.control_group import LEAST_QUOTA_S, CpuQuota
from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.records import Json, Origin, Reading, Unavailable
from suites.profiling import speed_model
from suites.profiling.speed_model import (
    SHARED,
    Dwell,
    MeanParts,
    Speeds,
    Subject,
    dwells,
    loss_as_waiting,
    mean_parts,
    slowdowns,
    step_ends_s,
)
from suites.profiling.workload import ClockSpeedWorkload
from suites.training import correctness
from suites.training.shared_trainers import SharedTrainers, shared
from suites.training.techniques import build_step
from suites.training.workload import refuse_odd_heads


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

        The kernel starts a new period where a quota is set, with all of it unused.
        """
        for index, speed in enumerate(speeds):
            if speed != self._set[index]:
                share = None if speed is None else speed * self._core_share
                self._quotas[index].limit(share, self._period_s)
                self._set[index] = speed

    @contextmanager
    def following(self, dwells: Iterator[tuple[float, ...]], dwell_s: float) -> Iterator[list[Dwell]]:
        """Impose dwell after dwell in the block, each for `dwell_s`; 0: the first one throughout.

        The list gets what was imposed and when, by time.monotonic.
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


class PacedRanks(SharedTrainers):
    """A pool with a speed for each rank, and the variants that have trainers on it."""

    def __init__(self, workload: ClockSpeedWorkload) -> None:
        super().__init__(RankPool([RankLocation((), ALONE)] * workload.dp_size, "127.0.0.1"), speed_model)
        try:
            self.speeds = ImposedSpeeds(self.pool.pids, workload.core_share, workload.quota_period_s)
        except BaseException:
            self.pool.close()
            raise

    def paced(
        self, key: str, count: int, dwells: Iterator[tuple[float, ...]], dwell_s: float
    ) -> tuple[Instants, list[Dwell]]:
        """Run updates at imposed speeds; return their instants on each rank, and what was imposed."""
        with self.speeds.following(dwells, dwell_s) as imposed:
            instants = self.call("instants", key=key, count=count)
        return instants, imposed

    def close(self) -> None:
        """End the ranks, whose quotas go first."""
        self.speeds.close()
        super().close()


KEYS = itertools.count()
SEEDS = itertools.count()

WARM_UP = 3
"""Updates at full speed when a trainer is made: DDP arranges its buckets anew after the first."""


def build(workload: Json, seed: int) -> Subject:
    """Return the step with every rank at full speed; all gradients in one bucket."""
    given = ClockSpeedWorkload(**workload)
    refuse_odd_heads(given)
    least_s = given.core_share * given.slow * given.quota_period_s
    if least_s < LEAST_QUOTA_S:
        raise Unavailable(
            f"core_share × slow × quota_period_s = {least_s:g} s: expected at least {LEAST_QUOTA_S:g} s, the "
            "kernel's shortest quota"
        )
    step = build_step(given.training, [*SHARED, {"ddp": {"buckets": 1}}], seed)
    return Subject(given, seed, step)


@dataclass(slots=True)
class Session:
    """A variant's trainers on the ranks that all variants share."""

    subject: Subject
    ranks: PacedRanks
    key: str
    max_error: float | None = None


def prepare(subject: Subject) -> Session:
    """Start the ranks if no variant has, and the variant's trainers on them."""
    workload, cores = subject.workload, len(os.sched_getaffinity(0))
    if workload.dp_size * workload.core_share > 0.9 * cores:
        raise Unavailable(
            f"{workload.dp_size} ranks with {workload.core_share:g} of a core each leave too little of "
            f"{cores} cores, so that speeds would not be those imposed; set core_share lower"
        )
    session = Session(subject, shared(PacedRanks, workload), f"{subject.speeds.pattern} {next(KEYS)}")
    session.ranks.enter(session.key, subject.step)
    return session


def check(session: Session) -> None:
    """Compare losses and gradients with plain PyTorch's; raises `WrongResult`."""
    call = session.ranks.call
    session.max_error = correctness.check_on_ranks(session.subject.step, call, session.key, SHARED)
    call("watch_arrivals", key=session.key)
    call("instants", key=session.key, count=WARM_UP)


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload, speeds = session.subject.workload, session.subject.speeds
    return {
        "device": "cpu",
        "device_name": "none",
        "speed": "imposed by a CPU quota",
        "pattern": speeds.pattern,
        "dwell_s": f"{speeds.dwell_s:g}",
        "slow": f"{workload.slow:g}",
        "ranks": str(workload.dp_size),
        "strategy": "ddp",
    }


def read_once(session: Session) -> Iterator[Reading]:
    """Read what is known beforehand: the closed formulas, and the check's error."""
    workload, speeds = session.subject.workload, session.subject.speeds
    yield Reading("parameters", "1", workload.shape.parameters, Origin.CALCULATED)
    if session.max_error is not None:
        yield Reading("max_error", "1", session.max_error, Origin.MEASURED, "plain PyTorch")
    for method, factor in slowdowns(speeds, workload.dp_size, workload.slow).items():
        yield Reading("slowdown", "1", factor, Origin.CALCULATED, method)
    if speeds.pattern == "one_slow":
        share = loss_as_waiting(workload.dp_size)
        yield Reading("loss_as_waiting", "1", share, Origin.CALCULATED, "closed formula")


def sample(session: Session) -> Iterator[Reading]:
    """Read a step's time at the imposed speeds, its parts, and the time that the model predicts."""
    workload, speeds, ranks = session.subject.workload, session.subject.speeds, session.ranks
    full = dwells(Speeds(), workload.dp_size, workload.slow, 0)
    reference, _ = ranks.paced(session.key, workload.reference_updates, full, 0.0)
    own = dwells(speeds, workload.dp_size, workload.slow, next(SEEDS))
    instants, imposed = ranks.paced(session.key, workload.updates, own, speeds.dwell_s)
    before, parts = mean_parts(reference), mean_parts(instants)
    yield Reading("time", "s", parts.step_s, Origin.EMULATED, "quota")
    yield Reading("slowdown", "1", parts.step_s / before.step_s, Origin.EMULATED, "quota")
    yield from of_parts(parts, before, speeds)
    predicted_s = predicted(instants, imposed, before)
    yield Reading("time", "s", predicted_s, Origin.SIMULATED, "model")
    yield Reading("model_error", "1", predicted_s / parts.step_s - 1, Origin.SIMULATED, "model")


def of_parts(parts: MeanParts, before: MeanParts, speeds: Speeds) -> Iterator[Reading]:
    """Return a step's parts, the share of a core while computing, and what of a loss is waiting."""
    first, others = parts.ranks[0], parts.ranks[1:]
    for name in ("computing_s", "waiting_s", "communication_s"):
        metric = name.removesuffix("_s")
        yield Reading(metric, "s", getattr(first, name), Origin.EMULATED, "rank 0")
        yield Reading(
            metric, "s", fmean(getattr(one, name) for one in others), Origin.EMULATED, "other ranks"
        )
    for method, some in (("rank 0", [first]), ("other ranks", others)):
        share = sum(one.computing_cpu_s for one in some) / sum(one.computing_s for one in some)
        yield Reading("core_share", "1", share, Origin.MEASURED, method)
    lost_s = parts.step_s - before.step_s
    if speeds.pattern == "one_slow":
        waited_s = parts.waiting_s - before.waiting_s
        yield Reading("loss_as_waiting", "1", waited_s / lost_s, Origin.EMULATED, "quota")


def predicted(instants: Instants, imposed: list[Dwell], before: MeanParts) -> float:
    """Return the mean step that the imposed speeds give, with the work and communication at full speed."""
    begin_s = max(one["averaged"][0] for one in instants)
    count = len(instants[0]["averaged"]) - 1
    work_s = [one.computing_s for one in before.ranks]
    ends_s = step_ends_s(imposed, begin_s, work_s, before.communication_s, count)
    return (ends_s[-1] - begin_s) / count


def close(session: Session) -> None:
    """Release the variant's trainers; with the last of them the ranks end."""
    session.ranks.leave(session.key)
