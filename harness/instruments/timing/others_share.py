"""The share of the processors' time that other processes and the hypervisor take while this one measures.

Linux counts it in /proc/stat for each processor. Of it this process's own time in user mode is subtracted,
with that of its children; time in the kernel is left out, because a network's packets are processed there
for whoever sent them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

PROC_STAT = Path("/proc/stat")

USER, NICE, STEAL = 0, 1, 7
"""Columns of a processor's line in /proc/stat, proc(5), in ticks."""


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
