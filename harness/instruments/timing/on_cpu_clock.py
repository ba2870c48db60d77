"""A clock that stops while the calling thread waits for a core, for work of one thread.

On a busy machine the scheduler cuts up a window of some milliseconds, and the wall clock shows the neighbours
rather than the work. Linux counts, for each thread, the time it was ready to run and did not (`run_delay`,
the second number of /proc/<thread>/schedstat, in ns). Sleeping and waiting for other threads still count as
time. Which process had the core is unknown. So it is a clock for work of one thread: with more threads than
cores, threads wait for one another, and that is part of the cost of the work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")

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
