"""Ends a Ray that was started by a process which is gone, even if that was killed; a program of its own.

`python ray_watchdog.py <folder> <token>` waits until its standard input ends, which the starter holds. Unless
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

ROUNDS, ROUND_S = 20, 0.1
"""Processes may start others while they are killed."""

ENDED = b"ended"
"""What the starter writes once it has ended Ray itself."""


def watched(folder: str, token: str) -> subprocess.Popen[bytes]:
    """Start the watchdog; it ends what is left once its input is closed, as when this process is killed."""
    environment = {name: value for name, value in os.environ.items() if value != token}
    return subprocess.Popen(
        [sys.executable, "-S", __file__, folder, token],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def belonging(folder: str, token: str) -> list[int]:
    """Return the processes with this token in their environment, or with an open file in this folder.

    Some of Ray's processes overwrite their environment with a title, but all have a log.
    """
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                with open(f"/proc/{name}/environ", "rb") as environment:
                    is_one = token.encode() in environment.read()
                if is_one or any(path.startswith(f"{folder}/") for path in open_files(name)):
                    found.append(int(name))
    return found


def open_files(process: str) -> list[str]:
    """Return the paths of the files that a process has open."""
    paths = []
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        with suppress(OSError):
            paths.append(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    return paths


def main(folder: str, token: str) -> None:
    """Wait for the end of the input, then end everything that has not ended."""
    ended = b""
    with suppress(KeyboardInterrupt):
        ended = sys.stdin.buffer.read()
    for _ in range(0 if ended else ROUNDS):
        alive = belonging(folder, token)
        if not alive:
            break
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(ROUND_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
