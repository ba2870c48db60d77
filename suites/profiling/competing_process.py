"""A process that keeps one core busy for a known share of the time.

It works until it has had its share of a period, then sleeps for the rest of it, and prints a line once it
runs. The kernel ends it with its parent, even while it is stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets once the thread that started it is gone."""


def main(core: int, share: float, period_s: float) -> None:
    """Take `share` of the core until this process is ended."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, {core})
    sys.stdout.write("busy\n")
    sys.stdout.flush()
    begin_s = time.monotonic()
    had_s = time.thread_time()
    while os.getppid() == parent:  # it may have gone before the kernel was asked
        had_s += share * period_s
        while time.thread_time() < had_s:
            pass
        begin_s = max(begin_s + period_s, time.monotonic())
        time.sleep(max(begin_s - time.monotonic(), 0.0))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
