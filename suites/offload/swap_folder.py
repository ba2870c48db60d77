"""The folder in which a cell's files lie that stand for host or disk: made by the cell, gone with it.

Its name says whose it is, so that what a kill -9 left is removed by the next cell that uses the same folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

PREFIX = "harness-swap"


def make(folder: str) -> str:
    """A new folder in `folder` ("": the system's for temporary files), once those of the dead are cleared."""
    parent = Path(folder or tempfile.gettempdir())
    for old in parent.glob(f"{PREFIX}-*"):
        if _is_left(old.name):
            shutil.rmtree(old, ignore_errors=True)
    me = os.getpid()
    return tempfile.mkdtemp(prefix=f"{PREFIX}-{me}-{_born(me)}-", dir=parent)


def remove(path: str) -> None:
    """Remove it, with whatever lies in it."""
    shutil.rmtree(path, ignore_errors=True)


def _is_left(name: str) -> bool:
    """Whether the process that made it is gone; a name of another form is somebody else's."""
    parts = name.removeprefix(f"{PREFIX}-").split("-")
    if len(parts) < 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return False
    try:
        return _born(int(parts[0])) != int(parts[1])
    except psutil.NoSuchProcess:
        return True


def _born(pid: int) -> int:
    """When the process began, in hundredths of a second: a number may be given again, but not then."""
    return round(psutil.Process(pid).create_time() * 100)
