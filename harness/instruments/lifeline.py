"""A pipe whose end is a process's: how a child cannot outlive its parent, whatever either does."""

from __future__ import annotations

import fcntl
import os
import select
import signal


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
