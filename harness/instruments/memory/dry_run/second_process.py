"""Trace one depth of a model in a second process while this one traces others: it halves the time to wait."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from harness.instruments.memory.memory_timeline import Timeline, from_bytes, to_bytes

PR_SET_PDEATHSIG = 1


def is_possible() -> bool:
    """Return whether this process may be forked, and has a core for the second one."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    return cores > 1 and threading.active_count() == 1


class TwoProcesses:
    """Traces depths by `trace`, those of `ahead` in a second process that was forked from this one."""

    def __init__(self, trace: Callable[[int], Timeline]) -> None:
        self._trace = trace
        self._ahead: dict[int, tuple[int, int]] = {}  # by depth: the process and what it writes to

    def ahead(self, depth: int) -> None:
        """Begin to trace a depth in the second process."""
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        parent = os.getpid()
        process = os.fork()
        if process:
            os.close(writing)
            self._ahead[depth] = process, reading
            return
        status = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                content = to_bytes(self._trace(depth), compressed=False)
                with os.fdopen(writing, "wb") as pipe:
                    pipe.write(content)
                status = 0
        finally:
            os._exit(status)

    def __call__(self, depth: int) -> Timeline:
        """Return the timeline of a depth; where the second process failed, this one traces it."""
        process, reading = self._ahead.pop(depth, (0, -1))
        if process:
            with os.fdopen(reading, "rb") as pipe:
                content = pipe.read()
            _, status = os.waitpid(process, 0)
            if status == 0:
                with suppress(ValueError):
                    return from_bytes(content)
        return self._trace(depth)

    def close(self) -> None:
        """End what is still traced."""
        for process, reading in self._ahead.values():
            os.kill(process, signal.SIGKILL)
            os.close(reading)
            os.waitpid(process, 0)
        self._ahead.clear()
