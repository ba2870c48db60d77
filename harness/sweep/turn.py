"""One process after the other in a results folder: who asks second waits, and finds the first one's records.

The kernel releases a lock with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.sweep.store import StoreError

logger = logging.getLogger(__name__)

TURN = ".turn"
"""The file whose lock a process has from its sweep to the end of its report."""


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other process has its turn in `folder`, which is made, and have it inside the block.

    Raises StoreError where the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / TURN, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = f"cannot write into {folder}: {error.strerror}; choose another with out=..."
        raise StoreError(reason) from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            logger.warning("%s: waiting for another process (pid %s), which writes there", folder, pid)
            fcntl.flock(file, fcntl.LOCK_EX)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)
