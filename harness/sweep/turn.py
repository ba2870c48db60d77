"""One process after the other in a results folder: who asks second waits, and finds the first one's records.

The kernel releases a lock with its process, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from harness.sweep.store import StoreError

logger = logging.getLogger(__name__)

TURN = ".turn"
"""The file whose lock a process has from its sweep to the end of its report."""


WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What the system says of a file system without locks, such as Lustre mounted without them."""


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other process has its turn in `folder`, which is made, and have it inside the block.

    Folders that were made for it and stay empty are removed. Raises StoreError where it cannot be written, or
    has no locks.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        file = _locked(folder)
    except OSError as error:
        what = "lock" if error.errno in WITHOUT_LOCKS else "write into"
        reason = f"cannot {what} {folder}: {error.strerror}; choose another with out=..."
        raise StoreError(reason) from error
    try:
        yield
    finally:
        (folder / TURN).unlink(missing_ok=True)
        with suppress(OSError):  # it has results, or another process waits there
            for one in made:
                one.rmdir()
        os.close(file)


def _locked(folder: Path) -> int:
    """Return the open file once its lock is this process's."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(folder / TURN, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # who had the turn has just removed the folder
            continue
        with ExitStack() as unless_locked:
            unless_locked.callback(os.close, file)
            _wait_for(folder, file)
            if _is_there(folder / TURN, file):
                unless_locked.pop_all()
                os.ftruncate(file, 0)
                os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
                return file


def _wait_for(folder: Path, file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
        logger.warning("%s: waiting for another process (pid %s), which writes there", folder, pid)
        fcntl.flock(file, fcntl.LOCK_EX)


def _is_there(path: Path, file: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file).st_ino
    except FileNotFoundError:
        return False
