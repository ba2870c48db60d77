"""The background load of the experiments: one process that spins in bursts, so that the machine is busy.

It computes for 0.05-0.5 s, drawn anew each time, one burst in four of them over 64 MB of memory, then sleeps
for 0-0.3 s. It ends when the pipe from its parent closes, however the parent ends.
"""

from __future__ import annotations

import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

WORDS = "one process, bursts of 0.05-0.5 s (one in four over 64 MB of memory), pauses of 0-0.3 s"


@contextmanager
def busy() -> Iterator[None]:
    child = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert child.stdin
        child.stdin.close()
        child.wait()


def spin() -> None:
    memory = bytearray(64 << 20)
    while not select.select([sys.stdin], [], [], random.uniform(0, 0.3))[0]:
        end_s = time.monotonic() + random.uniform(0.05, 0.5)
        streams = random.random() < 0.25
        while time.monotonic() < end_s:
            if streams:
                memory[: 32 << 20] = memory[32 << 20 :]
            else:
                sum(range(10_000))


if __name__ == "__main__":
    spin()
