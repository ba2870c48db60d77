"""How much was injected, measured without the trace: by the injector's clock, or calibrated beforehand."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from harness.instruments.cpu_quota import CpuQuota
from harness.records import Unavailable
from suites.profiling.diagnosis import Recording
from suites.profiling.injector import slowed
from suites.profiling.ranks import RecordedRanks
from suites.profiling.subject import Injection

SPIN = """
import os, sys, time
sys.stdin.readline()
os.sched_setaffinity(0, {int(sys.argv[1])})
begin_s, ran_s = time.perf_counter(), time.thread_time()
while time.perf_counter() - begin_s < float(sys.argv[2]):
    pass
print((time.perf_counter() - begin_s) / (time.thread_time() - ran_s) - 1)
"""
"""Prints the seconds off the core per second on it, of a process that always wants to run."""

SPIN_S = 0.6
CALIBRATIONS = 3


def calibrated(ranks: RecordedRanks, key: str, injection: Injection | None) -> float:
    """Return what the injection is measured by, from before the recordings.

    Of a quota the seconds that it holds a process back per second that it runs, of a link the seconds by
    which it lengthens the all-reduce of a step's gradients; 0 where the injector has a clock of its own.
    Raises `Unavailable`.
    """
    if injection is None or injection.kind in ("data_wait", "launch_sleep"):
        return 0.0
    if injection.kind == "slow_link":
        if ranks.network is None:
            raise Unavailable("a link between processes of one network namespace cannot be slowed")
        return median(lengthened_s(ranks, key, injection) for _ in range(CALIBRATIONS))
    if not ranks.cores:
        raise Unavailable("it needs a core for each rank")
    if injection.kind == "competing_load":
        return 0.0
    core = ranks.cores[injection.rank]
    return median(off_core(core, injection.share) for _ in range(CALIBRATIONS))


def off_core(core: int, share: float) -> float:
    """Return the seconds that a quota holds a process back per second that it runs."""
    command = [sys.executable, "-c", SPIN, str(core), str(SPIN_S)]
    with (
        CpuQuota() as quota,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        quota.enter(process.pid)
        quota.limit(share)
        return float(process.communicate("\n")[0])


def lengthened_s(ranks: RecordedRanks, key: str, injection: Injection) -> float:
    """Return by how many seconds the slower link lengthens the all-reduce of a step's gradients, alone."""
    plain_s = ranks.reduce_s(key)
    assert ranks.network is not None
    with slowed(ranks.network, injection.rate_B_per_s) as switch:
        switch(True)
        return ranks.reduce_s(key) - plain_s


def injected_s(recording: Recording, injection: Injection, by: float) -> float:
    """Return the seconds per step that were injected, with what `calibrated` returned."""
    if injection.kind == "slow_link":
        return by
    if injection.kind == "cpu_quota":
        return by * recording.counted(injection.rank, "processor_s")
    return recording.counted(injection.rank, "slept_s" if injection.seconds else "load_s")
