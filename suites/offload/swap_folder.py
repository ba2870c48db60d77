"""The folder in which a cell's files lie that stand for host or disk: made by the cell, gone with it.

Its name says whose it is, so that what a kill -9 left is removed by the next cell that uses the same folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from suites.offload.cgroup import started

PREFIX = "harness-swap"


def make(folder: str) -> str:
    """A new folder in `folder` ("": the system's for temporary files), once those of the dead are cleared."""
    parent = Path(folder or tempfile.gettempdir())
    for old in parent.glob(f"{PREFIX}-*"):
        if _is_left(old.name):
            shutil.rmtree(old, ignore_errors=True)
    me = os.getpid()
    return tempfile.mkdtemp(prefix=f"{PREFIX}-{_boot()}-{me}-{started(me)}-", dir=parent)


def remove(path: str) -> None:
    """Remove it, with whatever lies in it."""
    shutil.rmtree(path, ignore_errors=True)


def _is_left(name: str) -> bool:
    """Whether the process that made it is gone; a name of another form is somebody else's."""
    parts = name.removeprefix(f"{PREFIX}-").split("-")
    if len(parts) != 4 or parts[0] != _boot() or not (parts[1].isdigit() and parts[2].isdigit()):
        return False
    return started(int(parts[1])) != int(parts[2])


def _boot() -> str:
    """Tells this machine, and this boot of it, from others that may share the folder."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
