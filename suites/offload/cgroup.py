"""A memory cgroup: a limit on what processes keep in RAM, including page cache, with the kernel's counts.

Needs Linux and root, and the memory controller in version 1 or 2; `Unavailable` names what is missing. A
group is removed when its maker closes it or dies; if its guard was killed too, the next start removes it.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.records import Unavailable

PREFIX = "harness-memory-"
NUMBERS = r"(\d+)-(\d+)-\d+"
NAME = re.compile(PREFIX + NUMBERS)
"""Group name: the maker's process id, its start in ticks after boot (ids are reused), and a number."""

PAGE_B = os.sysconf("SC_PAGE_SIZE")

PROC = Path("/proc/self")

FILES = {
    1: {"limit": "memory.limit_in_bytes", "usage": "memory.usage_in_bytes", "swap": "memory.swappiness"},
    2: {"limit": "memory.max", "usage": "memory.current", "swap": "memory.swap.max"},
}
STATS = {1: ("cache", "rss"), 2: ("file", "anon")}
"""File names of the controller's versions (Documentation/admin-guide/cgroup-v1/memory.rst and
cgroup-v2.rst).
"""

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


class CgroupUsage(NamedTuple):
    """What a group uses now, and accesses that had to wait for a disk since it was made.

    Refaulted pages are not included: the kernel's count of them (workingset_refault_file) is too low once it
    has dropped the entries by which it recognizes a page. /proc/PID/io has what a process has read.
    """

    usage_B: int  # everything, including the kernel's memory on the group's account
    private_B: int  # anonymous memory
    file_pages: int  # of `PAGE_B` bytes
    major_faults: int


class Hierarchy(NamedTuple):
    """The memory controller: version, mount, this process's own group, and where new ones are made."""

    version: int
    mount: Path
    own: Path
    parent: Path


class Cgroup:
    """A new group without processes or limit; a context that empties and removes it.

    It is inside this process's own group, whose limits still apply. In version 2, where a group with
    processes cannot contain groups with limits, it is in the nearest one above that can. Nothing in it is
    swapped. Raises `Unavailable`.
    """

    def __init__(self) -> None:
        where = hierarchy()
        clear(where.mount)
        self._own, self._files, self._stats = where.own, FILES[where.version], STATS[where.version]
        self.path = where.parent / f"{PREFIX}{os.getpid()}-{started(os.getpid())}-{next(_numbers)}"
        try:
            self.path.mkdir()
        except OSError as error:
            raise Unavailable(f"no memory cgroup can be made in {where.parent}: {error.strerror}") from None
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "sh", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends the maker's process group must not end it
        )
        try:
            if self._file("swap").exists():
                self._file("swap").write_text("0")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cgroup:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def limit(self, limit_B: int) -> None:
        """Limit the bytes that its processes keep in RAM, including page cache.

        Beyond it pages of files are evicted; where that is not enough, the kernel kills a process in it.
        """
        self._file("limit").write_text(str(limit_B))

    def enter(self, pid: int = 0) -> None:
        """Move a process in, by default this one. Its existing memory stays on its old group's account."""
        (self.path / "cgroup.procs").write_text(str(pid or os.getpid()))

    def leave(self) -> None:
        """Move its processes to the group in which its maker was."""
        for pid in (self.path / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (self._own / "cgroup.procs").write_text(pid)

    def account(self) -> CgroupUsage:
        """Return the kernel's counts, which may lag by about a hundred pages per core."""
        usage_B = int(self._file("usage").read_text())
        lines = (self.path / "memory.stat").read_text().splitlines()
        stat = {name: int(count) for name, count in (line.split() for line in lines)}
        files_B, private_B = (stat[name] for name in self._stats)
        return CgroupUsage(usage_B, private_B, files_B // PAGE_B, stat["pgmajfault"])

    def close(self) -> None:
        """Empty the group and remove it; raises OSError where it cannot be removed."""
        with suppress(FileNotFoundError):
            self.leave()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(GRACE_S)
        with suppress(FileNotFoundError):
            self.path.rmdir()  # in case that the guard is no more

    def _file(self, what: str) -> Path:
        return self.path / self._files[what]


def hierarchy() -> Hierarchy:
    """Return where memory cgroups can be made; raises `Unavailable` where they cannot."""
    if not (PROC / "cgroup").exists():
        raise Unavailable("a memory cgroup needs Linux with /proc")
    if os.geteuid() != 0:
        raise Unavailable("a memory cgroup needs root")
    lines = [line.split(":", 2) for line in (PROC / "cgroup").read_text().splitlines()]
    first = [path for _, names, path in lines if "memory" in names.split(",")]
    second = [path for number, names, path in lines if number == "0" and not names]
    version, paths = (1, first) if first else (2, second)
    mount, root = _mount(version)
    own = mount / os.path.relpath(paths[0], root) if paths else mount
    if not paths or ".." in own.parts or not own.is_dir():
        raise Unavailable(f"this process's own memory cgroup is not visible below {mount}")
    parent = own if version == 1 else _able(own, mount)
    if not os.access(parent, os.W_OK) or not os.access(own / "cgroup.procs", os.W_OK):
        raise Unavailable(f"no memory cgroup can be made in {parent}: it is not writable here")
    return Hierarchy(version, mount, own, parent)


def can_leave(folder: str) -> bool:
    """Return whether pages of files in that folder can be evicted to a disk; those of a tmpfs cannot."""
    device = os.stat(folder).st_dev
    for line in (PROC / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            return after.split()[0] not in ("tmpfs", "ramfs")
    return True


def clear(mount: Path) -> None:
    """Remove the empty groups of makers that are gone, wherever they are."""
    for folder, names, _ in os.walk(mount):  # which tolerates folders that disappear meanwhile
        for match in filter(None, map(NAME.fullmatch, names)):
            if started(int(match[1])) != int(match[2]):
                with suppress(OSError):
                    Path(folder, match[0]).rmdir()


def _mount(version: int) -> tuple[Path, str]:
    """Return where the controller is mounted, and which group is its root there (proc(5), mountinfo)."""
    for line in (PROC / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if (kind == "cgroup2") if version == 2 else (kind == "cgroup" and "memory" in options.split(",")):
            root, mount = before.split(" ")[3:5]
            return Path(mount), root
    raise Unavailable("a memory cgroup needs the memory controller mounted, as at /sys/fs/cgroup")


def _able(own: Path, mount: Path) -> Path:
    """Return the nearest group from `own` upwards in which new ones get the memory controller (version 2)."""
    for folder in (own, *own.parents):
        if "memory" in (folder / "cgroup.subtree_control").read_text().split():
            return folder
        if folder == mount:
            break
    raise Unavailable(f"no memory cgroup can be made: no cgroup.subtree_control of {mount} has memory in it")


def started(pid: int) -> int | None:
    """Return when that process started, in clock ticks after boot (proc(5), stat); None where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None
