"""A limit on the processor time that a process may use per period, by the kernel's CPU bandwidth control.

Imposes a known speed: a process that may run 4 ms in every 10 ms computes at 40 % of a core's speed. Needs
Linux and root, and the cpu controller in version 1 or 2; `Unavailable` names what is missing. A group is
removed when its maker closes it or dies; if its guard was killed too, the next start removes it.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.records import Unavailable

PERIOD_S = 0.01
"""The period. Short, so that a step spans many. The kernel allows 1 ms to 1 s
(Documentation/scheduler/sched-bwc.rst)."""

LEAST_QUOTA_S = 1e-3
"""The kernel's least (kernel/sched/core.c, min_cfs_quota_period)."""

PREFIX = "harness-cpu-"
NAME = re.compile(PREFIX + r"(\d+)-(\d+)-\d+")
"""Group name: the maker's process id, its start in ticks after boot (ids are reused), and a number."""

PROC = Path("/proc/self")

GUARD = """
read -r end
try=0
while [ $try -lt 600 ]; do
    rmdir "$1"
    [ -d "$1" ] || exit
    sleep 0.1
    try=$((try + 1))
done
"""
"""Shell script of the guard: remove the group once its maker is gone, and all processes in it."""

GRACE_S = 5.0

_numbers = itertools.count()


class QuotaAccount(NamedTuple):
    """What the kernel counted since the group was made."""

    periods: int  # in which a process of the group wanted to run
    throttled_periods: int
    throttled_s: float  # over all processors


class QuotaHierarchy(NamedTuple):
    """The cpu controller: version, mount, this process's own group, and where new ones are made."""

    version: int
    mount: Path
    own: Path
    parent: Path


class CpuQuota:
    """A new group without processes or limit; a context that empties and removes it.

    Its processes share one quota. `share` is what they may use of one core, and may be above 1 on several
    cores. Raises `Unavailable`.
    """

    def __init__(self) -> None:
        where = quota_hierarchy()
        _clear(where.mount)
        self._version, self._own = where.version, where.own
        self.path = where.parent / f"{PREFIX}{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"
        try:
            self.path.mkdir()
        except OSError as error:
            raise Unavailable(f"no CPU cgroup can be made in {where.parent}: {error.strerror}") from None
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "sh", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends the maker's process group must not end it
        )

    def __enter__(self) -> CpuQuota:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def limit(self, share: float | None, period_s: float = PERIOD_S) -> None:
        """Allow `share` of one core's time from now on; None removes the limit.

        Raises ValueError for a quota below the kernel's least.
        """
        if share is not None and share * period_s < LEAST_QUOTA_S:
            raise ValueError(f"{share:g} of {period_s:g} s is below the kernel's {LEAST_QUOTA_S:g} s")
        period_us, quota_us = round(period_s * 1e6), -1 if share is None else round(share * period_s * 1e6)
        if self._version == 2:
            (self.path / "cpu.max").write_text(f"{'max' if share is None else quota_us} {period_us}")
            return
        if share is None or self._period_us() != period_us:  # no period is refused for the old quota
            (self.path / "cpu.cfs_quota_us").write_text("-1")
            (self.path / "cpu.cfs_period_us").write_text(str(period_us))
        (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))

    def enter(self, pid: int) -> None:
        """Move a process in, with all of its threads."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def account(self) -> QuotaAccount:
        """Return the kernel's counts."""
        lines = (self.path / "cpu.stat").read_text().splitlines()
        stat = {name: int(count) for name, count in (line.split() for line in lines)}
        throttled_s = stat["throttled_time"] / 1e9 if self._version == 1 else stat["throttled_usec"] / 1e6
        return QuotaAccount(stat["nr_periods"], stat["nr_throttled"], throttled_s)

    def close(self) -> None:
        """Move its processes to its maker's group and remove it; raises OSError where it cannot be."""
        try:
            self._move_out()
        finally:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(GRACE_S)
        with suppress(FileNotFoundError):
            self.path.rmdir()  # in case that the guard is no more

    def _move_out(self) -> None:
        """Move processes to the maker's group until none is left, since a process may fork meanwhile."""
        deadline_s = time.monotonic() + GRACE_S
        with suppress(FileNotFoundError):
            while pids := (self.path / "cgroup.procs").read_text().split():
                for pid in pids:
                    with suppress(ProcessLookupError):
                        (self._own / "cgroup.procs").write_text(pid)
                if time.monotonic() > deadline_s:
                    return  # removing the group then raises
                time.sleep(0.001)

    def _period_us(self) -> int:
        return int((self.path / "cpu.cfs_period_us").read_text())


def quota_hierarchy() -> QuotaHierarchy:
    """Return where CPU cgroups can be made; raises `Unavailable` where they cannot."""
    if not (PROC / "cgroup").exists():
        raise Unavailable("a CPU quota needs Linux with /proc")
    if os.geteuid() != 0:
        raise Unavailable("a CPU quota needs root")
    lines = [line.split(":", 2) for line in (PROC / "cgroup").read_text().splitlines()]
    first = [path for _, names, path in lines if "cpu" in names.split(",")]
    second = [path for number, names, path in lines if number == "0" and not names]
    version, paths = (1, first) if first else (2, second)
    mount, root = _mount(version)
    own = mount / os.path.relpath(paths[0], root) if paths else mount
    if not paths or ".." in own.parts or not own.is_dir():
        raise Unavailable(f"this process's own CPU cgroup is not visible below {mount}")
    parent = own if version == 1 else _able(own, mount)
    if not os.access(parent, os.W_OK) or not os.access(own / "cgroup.procs", os.W_OK):
        raise Unavailable(f"no CPU cgroup can be made in {parent}: it is not writable here")
    return QuotaHierarchy(version, mount, own, parent)


def _mount(version: int) -> tuple[Path, str]:
    """Return where the controller is mounted, and which group is its root there (proc(5), mountinfo)."""
    for line in (PROC / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if (kind == "cgroup2") if version == 2 else (kind == "cgroup" and "cpu" in options.split(",")):
            root, mount = before.split(" ")[3:5]
            return Path(mount), root
    raise Unavailable("a CPU quota needs the cpu controller mounted, as at /sys/fs/cgroup")


def _able(own: Path, mount: Path) -> Path:
    """Return the nearest group from `own` upwards in which new ones get the cpu controller (version 2)."""
    for folder in (own, *own.parents):
        if "cpu" in (folder / "cgroup.subtree_control").read_text().split():
            return folder
        if folder == mount:
            break
    raise Unavailable(f"no CPU cgroup can be made: no cgroup.subtree_control of {mount} has cpu in it")


def _clear(mount: Path) -> None:
    """Remove the empty groups of makers that are gone, wherever they are."""
    for folder, names, _ in os.walk(mount):  # which tolerates folders that disappear meanwhile
        for match in filter(None, map(NAME.fullmatch, names)):
            if _started(int(match[1])) != int(match[2]):
                with suppress(OSError):
                    Path(folder, match[0]).rmdir()


def _started(pid: int) -> int | None:
    """Return when that process started, in clock ticks after boot (proc(5), stat); None where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None
