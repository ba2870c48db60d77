"""One process after the other in a results folder: who asks second waits, and finds the first one's records.

The kernel releases a lock with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.sweep.store import StoreError

logger = logging.getLogger(__name__)

TURN = ".turn"
"""The file whose lock a process has from its sweep to the end of its report."""


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other process has its turn in `folder`, which is made, and have it inside the block.

    A folder that was made for it and stays empty is removed. Raises StoreError where it cannot be written.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _locked(folder)
    except OSError as error:
        reason = f"cannot write into {folder}: {error.strerror}; choose another with out=..."
        raise StoreError(reason) from error
    try:
        yield
    finally:
        (folder / TURN).unlink(missing_ok=True)
        os.close(file)
        with suppress(OSError):  # it has results, or another process waits there
            for one in made:
                one.rmdir()


def _locked(folder: Path) -> int:
    """Return the open file once its lock is this process's."""
    while True:
        file = os.open(folder / TURN, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            logger.warning("%s: waiting for another process (pid %s), which writes there", folder, pid)
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_there(folder / TURN, file):
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
            return file
        os.close(file)  # who had it has removed it
        folder.mkdir(parents=True, exist_ok=True)


def _is_there(path: Path, file: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file).st_ino
    except FileNotFoundError:
        return False
