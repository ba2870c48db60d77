"""A memory cgroup: a limit on what processes keep in RAM, including page cache, with the kernel's counts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from harness.instruments import control_group
from harness.instruments.control_group import ControlGroup, Controller

MEMORY = Controller("memory", "memory cgroup", "a memory cgroup", "harness-memory-")

PAGE_B = os.sysconf("SC_PAGE_SIZE")

FILES = {
    1: {"limit": "memory.limit_in_bytes", "usage": "memory.usage_in_bytes", "swap": "memory.swappiness"},
    2: {"limit": "memory.max", "usage": "memory.current", "swap": "memory.swap.max"},
}
STATS = {1: ("cache", "rss"), 2: ("file", "anon")}
"""File names of the controller's versions (Documentation/admin-guide/cgroup-v1/memory.rst and
cgroup-v2.rst).
"""


class CgroupUsage(NamedTuple):
    """What a group uses now, and accesses that had to wait for a disk since it was made.

    The kernel's count of refaulted pages (workingset_refault_file) is too low, so it is not among them.
    """

    usage_B: int  # everything, including the kernel's memory on the group's account
    private_B: int  # anonymous memory
    file_pages: int  # of `PAGE_B` bytes
    major_faults: int


class Cgroup(ControlGroup):
    """A group whose memory is limited; nothing in it is swapped. Raises `Unavailable`.

    The memory that a process has when it enters stays on its old group's account.
    """

    def __init__(self) -> None:
        super().__init__(MEMORY)
        self._files, self._stats = FILES[self._version], STATS[self._version]
        try:
            if self._file("swap").exists():
                self._file("swap").write_text("0")
        except BaseException:
            self.close()
            raise

    def limit(self, limit_B: int) -> None:
        """Limit the bytes that its processes keep in RAM, including page cache.

        Beyond it pages of files are evicted; where that is not enough, the kernel kills a process in it.
        """
        self._file("limit").write_text(str(limit_B))

    def account(self) -> CgroupUsage:
        """Return the kernel's counts, which may lag by about a hundred pages per core."""
        usage_B = int(self._file("usage").read_text())
        lines = (self.path / "memory.stat").read_text().splitlines()
        stat = {name: int(count) for name, count in (line.split() for line in lines)}
        files_B, private_B = (stat[name] for name in self._stats)
        return CgroupUsage(usage_B, private_B, files_B // PAGE_B, stat["pgmajfault"])

    def _file(self, what: str) -> Path:
        return self.path / self._files[what]


def can_leave(folder: str) -> bool:
    """Return whether pages of files in that folder can be evicted to a disk; those of a tmpfs cannot."""
    device = os.stat(folder).st_dev
    for line in (control_group.PROC / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            return after.split()[0] not in ("tmpfs", "ramfs")
    return True
