"""The folder of a cell's files that represent host or disk: created by the cell, removed with it.

Its name identifies its owner, so that what a kill -9 left is removed by the next cell that uses the same
folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from harness.instruments.control_group import started_ticks

PREFIX = "harness-swap"


def make(folder: str) -> str:
    """Remove folders of dead cells; return a new one in `folder` ("": the system's for temporary files)."""
    parent = Path(folder or tempfile.gettempdir())
    for old in parent.glob(f"{PREFIX}-*"):
        if _is_left(old.name):
            shutil.rmtree(old, ignore_errors=True)
    me = os.getpid()
    return tempfile.mkdtemp(prefix=f"{PREFIX}-{_boot()}-{me}-{started_ticks(me)}-", dir=parent)


def remove(path: str) -> None:
    """Remove the folder with its content."""
    shutil.rmtree(path, ignore_errors=True)


def _is_left(name: str) -> bool:
    """Return whether the process that made it is gone; other names are not ours."""
    parts = name.removeprefix(f"{PREFIX}-").split("-")
    if len(parts) != 4 or parts[0] != _boot() or not (parts[1].isdigit() and parts[2].isdigit()):
        return False
    return started_ticks(int(parts[1])) != int(parts[2])


def _boot() -> str:
    """Return an identifier of this machine's boot, which separates machines that share the folder."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
