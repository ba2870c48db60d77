"""Memory of processes as the kernel counts it: proportional shares of several, and a limit on private memory.

Of several processes a shared page is not counted twice: each page counts for a process by its share, 1 /
(processes that have mapped it). Pages of shared memory that no process has mapped count for none;
`unmapped_shared_B` counts those. The limit needs no root: the allocation that would exceed it fails.
"""

from __future__ import annotations

import os
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.records import Unavailable

PROC = Path("/proc")
KIB = 1024
BLOCK_B = 512  # unit of st_blocks, see stat(2)
SHARED_MEMORY = ("/dev/shm/", "/memfd:")
DELETED = " (deleted)"  # behind the path of a file without a name, proc(5)
_PSS = re.compile(r"^Pss:\s*(\d+) kB", re.M)
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)\s*(.*)$")


class SharedFile(NamedTuple):
    """A file that several processes may have open, by device and inode."""

    device: int
    inode: int


def tree(pid: int) -> list[int]:
    """Return the process and all below it that still run, itself first; none where it has ended."""
    try:
        return [pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def pss_B(pids: Iterable[int]) -> int:
    """Return processes' proportional set size in bytes; those that have ended have none.

    Raises PermissionError where a process belongs to someone else, `Unavailable` where the kernel does not
    count it.
    """
    found = [_PSS.search(text) for text in _texts(pids, "smaps_rollup")]
    if None in found:
        raise Unavailable(
            "memory per process needs the kernel's Pss, which /proc/<pid>/smaps_rollup lacks here"
        )
    return sum(int(one[1]) * KIB for one in found if one)


def unmapped_shared_B(pids: Iterable[int]) -> int:
    """Return the bytes in files in memory that these processes have open, less what `pss_B` counts of them.

    Such a file is in /dev/shm or made by memfd_create; it may have been deleted. Of one that is mapped and
    not open, the part that nobody has mapped is not known and counts as none. Raises as `pss_B` does.
    """
    given = list(pids)
    allocated_B = _open_files(given, lambda path: path.startswith(SHARED_MEMORY))
    if not allocated_B:
        return 0
    mapped_B = Counter[SharedFile]()
    for text in _texts(given, "smaps"):
        for file, size_B in _mapped(text):
            mapped_B[file] += size_B
    return sum(max(size_B - mapped_B[file], 0) for file, size_B in allocated_B.items())


def nameless_files_B(pids: Iterable[int]) -> int:
    """Return the bytes of deleted files that processes have open, but of `unmapped_shared_B`."""

    def is_nameless(path: str) -> bool:
        return path.endswith(DELETED) and not path.startswith(SHARED_MEMORY)

    return sum(_open_files(pids, is_nameless).values())


def _texts(pids: Iterable[int], name: str) -> Iterator[str]:
    """Return a file of each process that still runs. One that ends while it is read raises ESRCH."""
    for pid in pids:
        try:
            yield (PROC / str(pid) / name).read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError) as error:
            if not (PROC / "self" / name).exists():
                raise Unavailable(
                    f"memory per process needs /proc/<pid>/{name}, which is missing here"
                ) from error


def _open_files(pids: Iterable[int], wanted: Callable[[str], bool]) -> dict[SharedFile, int]:
    """Return the allocated bytes of the files that processes have open and whose path is wanted."""
    found: dict[SharedFile, int] = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for entry in os.scandir(PROC / str(pid) / "fd"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    if wanted(os.readlink(entry.path)):
                        status = os.stat(entry.path)
                        found[SharedFile(status.st_dev, status.st_ino)] = status.st_blocks * BLOCK_B
    return found


def _mapped(smaps: str) -> Iterator[tuple[SharedFile, int]]:
    """Return the proportional set size of each mapping of a file in memory."""
    file: SharedFile | None = None
    for line in smaps.splitlines():
        if header := _MAPPING.match(line):
            major, minor, inode, path = header.groups()
            is_shared = path.startswith(SHARED_MEMORY)
            file = SharedFile(os.makedev(int(major, 16), int(minor, 16)), int(inode)) if is_shared else None
        elif file is not None and (found := _PSS.match(line)):
            yield file, int(found[1]) * KIB


EXACT = {"MALLOC_MMAP_THRESHOLD_": "8192", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""The environment of a process whose private memory follows its live data: each large allocation has its own
mapping, which is returned at once (mallopt(3))."""

STACK_KIB = 1024
SMALL_STACKS = ("sh", "-c", f'ulimit -S -s {STACK_KIB} && exec "$@"', "sh")
"""Prefix of such a process's command: stacks that threads reserve are private memory too, used or not."""


def private_bytes() -> int:
    """Return the bytes of private writable memory that this process has mapped (the kernel's VmData)."""
    match = re.search(r"^VmData:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    if match is None:
        raise Unavailable("a limit on memory needs the kernel's VmData, which /proc/self/status lacks here")
    return int(match[1]) * 1024


@contextmanager
def private_limit(most_B: int) -> Iterator[None]:
    """Make allocations fail once this process has `most_B` bytes of private memory (RLIMIT_DATA).

    Memory shared with other processes and shared file mappings do not count; the stack of each thread does,
    with its full size. Processes started inside the block inherit the limit, each for itself.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most_B if hard < 0 else min(most_B, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
