"""Who else had the core: waiting for it, a clock that stops meanwhile, and the share of others.

What the kernel counts of a thread that did not run: waiting for a core, and held back by a quota.

A thread that was ready and did not run has waited for its core (`run_delay`, /proc/<thread>/schedstat, in
ns), because of another process or because its control group had used up its quota. The latter has a count of
its own in the group's cpu.stat (Documentation/scheduler/sched-bwc.rst). Reading takes some microseconds.

A clock that stops while the calling thread waits for a core, for work of one thread.

On a busy machine the scheduler cuts up a window of some milliseconds, and the wall clock shows the neighbours
rather than the work. Linux counts, for each thread, the time it was ready to run and did not (`run_delay`,
the second number of /proc/<thread>/schedstat, in ns). Sleeping and waiting for other threads still count as
time. Which process had the core is unknown. So it is a clock for work of one thread: with more threads than
cores, threads wait for one another, and that is part of the cost of the work.

The share of the processors' time that other processes and the hypervisor take while this one measures.

Linux counts it in /proc/stat for each processor. Of it this process's own time in user mode is subtracted,
with that of its children; time in the kernel is left out, because a network's packets are processed there
for whoever sent them.

The speed of a core, from a chain of operations of which each needs the one before.

Its time on the core is inverse to the clock: it depends neither on memory nor on how many operations the core
can do at once. Hashing by PBKDF2 (RFC 8018) is such a chain. The thread's own processor time is taken, which
stops while another process has the core.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

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
    try:
        group = own_group("cpu")
        counts = (
            dict(line.split() for line in (group.path / "cpu.stat").read_text().splitlines()) if group else {}
        )
    except OSError:
        return 0.0
    if "throttled_time" in counts:  # version 1, ns
        return int(counts["throttled_time"]) / 1e9
    return int(counts.get("throttled_usec", 0)) / 1e6


Clock = Callable[[], float]


def core_clock(clock: Clock = time.perf_counter, waited_s: Clock | None = None) -> Clock:
    """Return a clock: seconds by `clock`, less those that the calling thread has waited for a core.

    `waited_s` gives the latter; without it they are read from the kernel, and where the kernel does not
    report them, nothing is subtracted.
    """
    if waited_s is None:
        waited_s = _waited_s()
    return clock if waited_s is None else lambda: _ran_s(clock, waited_s)


def _ran_s(clock: Clock, waited_s: Clock) -> float:
    """Read again until no wait lies between the two readings, so that they are of one instant."""
    before_s = waited_s()
    while True:
        now_s, after_s = clock(), waited_s()
        if after_s == before_s:
            return now_s - after_s
        before_s = after_s


def _waited_s(path: Path = SCHEDSTAT) -> Clock | None:
    try:
        file = path.open("rb", buffering=0)
    except OSError:
        return None
    return lambda: int(os.pread(file.fileno(), 64, 0).split()[1]) / 1e9


PROC_STAT = Path("/proc/stat")

USER, NICE, STEAL = 0, 1, 7  # columns of a processor's line in /proc/stat, proc(5), in ticks


class OthersShare:
    """Counts from its creation on; `share()` is that of the processors that this process may run on."""

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
    process = psutil.Process()
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.children_user
    return total


ITERATIONS = 400  # about 0.2 ms: far longer than the clock's resolution, far shorter than a training step
READS = 3  # chains of one reading, of which the fastest counts: the first finds cold caches


def chain_s() -> float:
    """Return the seconds of a chain on this thread's core now; a clock is inverse to it."""
    return min(_one_chain_s() for _ in range(READS))


def _one_chain_s() -> float:
    begin_s = time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"clock", b"chain", ITERATIONS)
    return time.thread_time() - begin_s
