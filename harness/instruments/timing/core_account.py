"""What the kernel counts of a thread that did not run: waiting for a core, and held back by a quota.

A thread that was ready and did not run has waited for its core (`run_delay`, /proc/<thread>/schedstat, in
ns), because of another process or because its control group had used up its quota. The latter has a count of
its own in the group's cpu.stat (Documentation/scheduler/sched-bwc.rst). Reading takes some microseconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

SCHEDSTAT = Path("/proc/thread-self/schedstat")
CGROUPS = Path("/proc/self/cgroup")
MOUNTS = Path("/proc/self/mountinfo")


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
    stat = _stat_file()
    if stat is None or not stat.is_file():
        return 0.0
    counts = dict(line.split() for line in stat.read_text().splitlines())
    if "throttled_time" in counts:  # version 1, ns
        return int(counts["throttled_time"]) / 1e9
    return int(counts.get("throttled_usec", 0)) / 1e6


def _stat_file() -> Path | None:
    """Return the cpu.stat of this process's group; None where no controller is mounted."""
    try:
        lines = [line.split(":", 2) for line in CGROUPS.read_text().splitlines()]
        mounts = MOUNTS.read_text().splitlines()
    except OSError:
        return None
    first = [path for _, names, path in lines if "cpu" in names.split(",")]
    second = [path for number, names, path in lines if number == "0" and not names]
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        wanted = first if kind == "cgroup" and "cpu" in options.split(",") else []
        wanted = second if kind == "cgroup2" and not first else wanted
        if wanted:
            root, mount = before.split(" ")[3:5]
            return Path(mount, os.path.relpath(wanted[0], root), "cpu.stat")
    return None
