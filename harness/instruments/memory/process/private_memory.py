"""A limit on a process's private memory, which needs no root: the allocation that would exceed it fails."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.records import Unavailable

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
