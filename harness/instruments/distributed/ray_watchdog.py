"""Ends a Ray that was started by a process which is gone, even if that was killed; a program of its own.

`python ray_watchdog.py <folder>` waits until its standard input ends, which the starter holds. Unless
the starter has written there that Ray has ended, it kills all processes of this Ray. It removes Ray's folder.
It needs the standard library alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

ROUNDS, ROUND_S = 20, 0.1  # processes may start others while they are killed
ENDED = b"ended"  # what the starter writes once it has ended Ray itself


def watched(folder: str) -> subprocess.Popen[bytes]:
    """Start the watchdog; it has no TMPDIR, by which the harness finds a cell's processes to kill."""
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    command = [sys.executable, "-S", __file__, folder]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment)


def belonging(folder: str) -> list[int]:
    """Return the processes that have a file in this folder open: all of Ray's have a log there."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                if any(path.startswith(f"{folder}/") for path in open_files(name)):
                    found.append(int(name))
    return found


def open_files(process: str) -> list[str]:
    """Return the paths of the files that a process has open."""
    paths = []
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        with suppress(OSError):
            paths.append(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    return paths


def kill_all(folder: str) -> None:
    """Kill all processes of a Ray with this folder, except this one."""
    for _ in range(ROUNDS):
        if not (alive := belonging(folder)):
            break
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(ROUND_S)


def main(folder: str) -> None:
    """Wait for the end of the input, then end everything that has not ended."""
    ended = b""
    with suppress(KeyboardInterrupt):
        ended = sys.stdin.buffer.read()
    if not ended:
        kill_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
