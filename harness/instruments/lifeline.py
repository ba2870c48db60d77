"""How a child cannot outlive its parent, whatever either does: by a pipe, or by the thread that began it."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets once the thread that started it is gone."""


def die_with_starter() -> None:
    """Make the kernel kill this process once the thread that started it is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_parent(lifeline: int) -> None:
    """Make the kernel kill this process's group once the parent's end of the pipe `lifeline` closes.

    This works even while the process hangs in C, and covers the processes it started. Linux only: fcntl(2),
    F_SETSIG.
    """
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, getattr(fcntl, "F_SETSIG", 10), signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if select.select([lifeline], [], [], 0)[0]:  # it closed before this was armed
        os.killpg(0, signal.SIGKILL)
