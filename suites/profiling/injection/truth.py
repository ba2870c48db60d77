"""How much was injected, measured without the trace: by a clock of the injector or kernel, or beforehand."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from harness.instruments.control_group import CpuQuota
from harness.records import Unavailable
from suites.profiling.diagnosis import Recording
from suites.profiling.injection.injector import slowed
from suites.profiling.ranks import RecordedRanks
from suites.profiling.recorder import Injection

SPIN = """
import os, sys, time
sys.stdin.readline()
os.sched_setaffinity(0, {int(sys.argv[1])})
begin_s, ran_s = time.perf_counter(), time.thread_time()
while time.perf_counter() - begin_s < float(sys.argv[2]):
    pass
print(time.perf_counter() - begin_s - (time.thread_time() - ran_s))
"""
"""Prints the seconds that a process which always wants to run is off its core."""

SPIN_S = 0.6
CALIBRATIONS = 3


def calibrated(ranks: RecordedRanks, key: str, injection: Injection | None) -> float:
    """Return what the injection is measured by, from before the recordings.

    For a quota: the kernel's count over the seconds for which it holds back a process that always wants to
    run. For a link: the seconds by which it lengthens what a step sends. Else 0: the injector has a clock.
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
    return median(counted_of_held_back(core, injection.share) for _ in range(CALIBRATIONS))


def counted_of_held_back(core: int, share: float) -> float:
    """Return the kernel's count over the seconds that a quota holds a process back: 1 if both agree."""
    command = [sys.executable, "-c", SPIN, str(core), str(SPIN_S)]
    with (
        CpuQuota() as quota,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        quota.enter(process.pid)
        quota.limit(share)
        off_core_s = float(process.communicate("\n")[0])
        return quota.account().throttled_s / off_core_s


def lengthened_s(ranks: RecordedRanks, key: str, injection: Injection) -> float:
    """Return by how many seconds the slower link lengthens what a step sends, if that is sent alone."""
    plain_s = ranks.communicate_s(key)
    assert ranks.network is not None
    with slowed(ranks.network, injection.rate_B_per_s) as switch:
        switch(True)
        return ranks.communicate_s(key) - plain_s


def injected_s(recording: Recording, injection: Injection, by: float) -> float:
    """Return the seconds per step that were injected, with what `calibrated` returned."""
    if injection.kind == "slow_link":
        return by
    if injection.kind == "cpu_quota":
        return recording.counted(injection.rank, "throttled_s")
    return recording.counted(injection.rank, "slept_s" if injection.seconds else "load_s")
