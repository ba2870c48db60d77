"""Who else had the core: waiting for it, a clock that stops meanwhile, the share of others, and its speed.

A thread that was ready and did not run has waited for its core (`run_delay`, the second number of
/proc/<thread>/schedstat, in ns), because of another process or because its control group had used up its
quota. The latter has a count of its own in the group's cpu.stat (Documentation/scheduler/sched-bwc.rst).

On a busy machine the scheduler cuts up a window of some milliseconds, and the wall clock shows the neighbours
rather than the work; `core_clock` stops meanwhile. Sleeping and waiting for other threads still count as
time. So it is a clock for work of one thread: with more threads than cores, threads wait for one another, and
that is part of the cost of the work.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.instruments import control_group
from harness.instruments.control_group import own_group

SCHEDSTAT = Path("/proc/thread-self/schedstat")


class CoreCounts(NamedTuple):
    """Seconds since the thread started, or its group was made; 0 where the kernel does not count them."""

    waited_s: float  # ready, but not run, for whatever reason
    throttled_s: float  # of its group: held back by a quota


def core_counts() -> CoreCounts:
    """Return the counts of the thread that calls this, in whichever control group it is now."""
    return CoreCounts(waited_s(), throttled_s())


def waited_s() -> float:
    """Return the seconds that this thread has waited for a core."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def throttled_s() -> float:
    """Return the seconds that this process's control group was held back by a quota."""
    with suppress(OSError):
        group = own_group("cpu")
        return control_group.throttled_s(group.own) if group else 0.0
    return 0.0


Clock = Callable[[], float]


def core_clock(clock: Clock = time.perf_counter, waited_s: Clock | None = None) -> Clock:
    """Return a clock: seconds by `clock`, less those that the calling thread has waited for a core.

    `waited_s` gives the latter; without it they are read from the kernel, and where the kernel does not
    report them, nothing is subtracted.
    """
    waits_s = waited_s or _waited_s()
    if waits_s is None:
        return clock

    def ran_s() -> float:
        before_s = waits_s()
        while True:  # until no wait lies between the two readings, so that they are of one instant
            now_s, after_s = clock(), waits_s()
            if after_s == before_s:
                return now_s - after_s
            before_s = after_s

    return ran_s


def _waited_s(path: Path = SCHEDSTAT) -> Clock | None:
    try:
        file = path.open("rb", buffering=0)
    except OSError:
        return None
    return lambda: int(os.pread(file.fileno(), 64, 0).split()[1]) / 1e9


PROC_STAT = Path("/proc/stat")

USER, NICE, STEAL = 0, 1, 7  # columns of a processor's line in /proc/stat, proc(5), in ticks


class OthersShare:
    """The share of the processors' time that other processes and the hypervisor take, from its creation on.

    Of what /proc/stat counts, this process's own time in user mode is subtracted, with that of its children;
    time in the kernel is left out, because a network's packets are processed there for whoever sent them.
    """

    def __init__(self) -> None:
        self._begin = _counted()

    def share(self) -> float | None:
        """Return the share from 0 to 1; None where the system does not count it or no time has passed."""
        now = _counted()
        if self._begin is None or now is None or now[2] <= self._begin[2]:
            return None
        every_s, own_s, passed_s = (end - begin for begin, end in zip(self._begin, now, strict=True))
        return min(1.0, max(0.0, (every_s - own_s) / (passed_s * len(os.sched_getaffinity(0)))))


def _counted() -> tuple[float, float, float] | None:
    """Return the seconds of user mode, niced work and steal on this process's processors; of its own; now."""
    try:
        every_s = seconds_of(PROC_STAT.read_text(), os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None
    return every_s, _own_s(), time.monotonic()


def seconds_of(text: str, processors: set[int], ticks_per_s: float) -> float:
    """Return the seconds in user mode, niced and stolen of these processors, in the text of /proc/stat."""
    total = 0
    for line in text.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in processors:
            total += sum(int(columns[index]) for index in (USER, NICE, STEAL))
    return total / ticks_per_s


def _own_s() -> float:
    """Return the seconds in user mode of this process and its children, those that have ended too."""
    process, total = psutil.Process(), 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.children_user
    return total


ITERATIONS = 400  # about 0.2 ms: far longer than the clock's resolution, far shorter than a training step
READS = 3  # chains of one reading, of which the fastest counts: the first finds cold caches


def chain_s() -> float:
    """Return the seconds of a chain of operations on this thread's core now, of which each needs the last.

    A core's clock is inverse to it: it depends neither on memory nor on how many operations the core can do
    at once. Hashing by PBKDF2 (RFC 8018) is such a chain. It is the thread's own processor time, which stops
    while another process has the core.
    """
    times_s = []
    for _ in range(READS):
        begin_s = time.thread_time()
        hashlib.pbkdf2_hmac("sha256", b"clock", b"chain", ITERATIONS)
        times_s.append(time.thread_time() - begin_s)
    return min(times_s)
