"""Control groups (cgroups) of one controller: made, filled, emptied and removed, with nothing left behind.

Needs Linux and root, and the controller in version 1 or 2; `Unavailable` names what is missing. A group is
removed when its maker closes it or dies; if its guard was killed too, the next start removes it.
`CpuQuota` imposes a known speed: a process that may run 4 ms in every 10 ms computes at 40 % of a core's.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from harness.records import Unavailable

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
"""Shell script of the guard: remove the group once its maker is gone, and all processes in it.

A maker that ends closes its pipe first, and on a busy machine is in the group for seconds after that.
"""

GRACE_S = 5.0
_numbers = itertools.count()


class Controller(NamedTuple):
    """A controller's name in the kernel, and its words for errors: `title` of its groups, `use` of them."""

    name: str
    title: str
    use: str
    prefix: str  # of the names of groups; their maker's process id and start in ticks, and a number follow


class GroupPlaces(NamedTuple):
    """A controller's version and mount, this process's own group, and where new ones are made."""

    version: int
    mount: Path
    own: Path
    parent: Path  # the own group, until `group_places` has found it


class ControlGroup:
    """A new group without processes or limit; a context that empties and removes it.

    It is inside this process's own group, whose limits still apply. In version 2, where a group with
    processes cannot contain groups with limits, it is in the nearest one above that can.
    Raises `Unavailable`.
    """

    def __init__(self, controller: Controller) -> None:
        where = group_places(controller)
        _clear(where.mount, controller.prefix)
        self._version, self._own = where.version, where.own
        pid = os.getpid()
        self.path = where.parent / f"{controller.prefix}{pid}-{started_ticks(pid)}-{next(_numbers)}"
        try:
            self.path.mkdir()
        except OSError as error:
            reason = f"no {controller.title} can be made in {where.parent}: {error.strerror}"
            raise Unavailable(reason) from None
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "sh", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends the maker's process group must not end it
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def enter(self, pid: int = 0) -> None:
        """Move a process in with all of its threads, by default this one."""
        (self.path / "cgroup.procs").write_text(str(pid or os.getpid()))

    def leave(self) -> None:
        """Move its processes to its maker's group until none is left, since a process may fork meanwhile."""
        deadline_s = time.monotonic() + GRACE_S
        with suppress(FileNotFoundError):
            while pids := (self.path / "cgroup.procs").read_text().split():
                for pid in pids:
                    with suppress(ProcessLookupError):
                        (self._own / "cgroup.procs").write_text(pid)
                if time.monotonic() > deadline_s:
                    return  # removing the group then raises
                time.sleep(0.001)

    def close(self) -> None:
        """Empty the group and remove it; raises OSError where it cannot be removed."""
        try:
            self.leave()
        finally:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(GRACE_S)
        with suppress(FileNotFoundError):
            self.path.rmdir()  # in case that the guard is no more


def own_group(controller: str) -> GroupPlaces | None:
    """Return the group that this process is in; None where the controller is not mounted.

    By proc(5), cgroup and mountinfo. The path has ".." where the group is not below what is mounted here.
    """
    lines = [line.split(":", 2) for line in (PROC / "cgroup").read_text().splitlines()]
    first = [path for _, names, path in lines if controller in names.split(",")]
    version = 1 if first else 2
    paths = first or [path for number, names, path in lines if number == "0" and not names]
    for line in (PROC / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        has_it = version == 2 or controller in options.split(",")
        if has_it and kind == ("cgroup2" if version == 2 else "cgroup"):
            root, mount = before.split(" ")[3:5]
            own = Path(mount, os.path.relpath(paths[0], root) if paths else "..")
            return GroupPlaces(version, Path(mount), own, own)
    return None


def group_places(controller: Controller) -> GroupPlaces:
    """Return where groups of the controller can be made; raises `Unavailable` where they cannot."""
    if not (PROC / "cgroup").exists():
        raise Unavailable(f"{controller.use} needs Linux with /proc")
    if os.geteuid() != 0:
        raise Unavailable(f"{controller.use} needs root")
    where = own_group(controller.name)
    if where is None:
        mounted = f"the {controller.name} controller mounted, as at /sys/fs/cgroup"
        raise Unavailable(f"{controller.use} needs {mounted}")
    if ".." in where.own.parts or not where.own.is_dir():
        raise Unavailable(f"this process's own {controller.title} is not visible below {where.mount}")
    if where.version == 2:
        where = where._replace(parent=_able(controller, where.own, where.mount))
    if not os.access(where.parent, os.W_OK) or not os.access(where.own / "cgroup.procs", os.W_OK):
        raise Unavailable(f"no {controller.title} can be made in {where.parent}: it is not writable here")
    return where


def started_ticks(pid: int) -> int | None:
    """Return when a process started, in ticks after boot (ids are used again); None where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


def _able(controller: Controller, own: Path, mount: Path) -> Path:
    """Return the nearest group from `own` upwards in which new ones get the controller (version 2)."""
    for folder in (own, *own.parents):
        if controller.name in (folder / "cgroup.subtree_control").read_text().split():
            return folder
        if folder == mount:
            break
    raise Unavailable(
        f"no {controller.title} can be made: no cgroup.subtree_control of {mount} has {controller.name} in it"
    )


def _clear(mount: Path, prefix: str) -> None:
    """Remove the empty groups of makers that are gone, wherever they are."""
    name = re.compile(prefix + r"(\d+)-(\d+)-\d+")
    for folder, names, _ in os.walk(mount):  # which tolerates folders that disappear meanwhile
        for match in filter(None, map(name.fullmatch, names)):
            if started_ticks(int(match[1])) != int(match[2]):
                with suppress(OSError):
                    Path(folder, match[0]).rmdir()


CPU = Controller("cpu", "CPU cgroup", "a CPU quota", "harness-cpu-")

PERIOD_S = 0.01
"""The period. Short, so that a step spans many. The kernel allows 1 ms to 1 s
(Documentation/scheduler/sched-bwc.rst)."""

LEAST_QUOTA_S = 1e-3  # the kernel's least (kernel/sched/core.c, min_cfs_quota_period)


class CpuQuota(ControlGroup):
    """A group whose processes share `share` of one core, above 1 on several. Raises `Unavailable`."""

    def __init__(self) -> None:
        super().__init__(CPU)

    def limit(self, share: float | None, period_s: float = PERIOD_S) -> None:
        """Allow `share` of a core from now on, None: all; raises ValueError below the kernel's least."""
        if share is not None and share * period_s < LEAST_QUOTA_S:
            raise ValueError(f"{share:g} of {period_s:g} s is below the kernel's {LEAST_QUOTA_S:g} s")
        period_us, quota_us = round(period_s * 1e6), -1 if share is None else round(share * period_s * 1e6)
        if self._version == 2:
            (self.path / "cpu.max").write_text(f"{'max' if share is None else quota_us} {period_us}")
            return
        old_us = int((self.path / "cpu.cfs_period_us").read_text())
        if share is None or old_us != period_us:  # no period is refused for the old quota
            (self.path / "cpu.cfs_quota_us").write_text("-1")
            (self.path / "cpu.cfs_period_us").write_text(str(period_us))
        (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))

    def throttled_s(self) -> float:
        """Return the seconds that its processes were held back since the group was made."""
        return throttled_s(self.path)


def throttled_s(group: Path) -> float:
    """Return the seconds over all processors that a quota has held a group back, else 0. Raises OSError."""
    counts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    if "throttled_time" in counts:  # version 1, ns
        return int(counts["throttled_time"]) / 1e9
    return int(counts.get("throttled_usec", 0)) / 1e6
