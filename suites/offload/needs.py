"""What arms need of the machine, and the line that says what is missing."""

from __future__ import annotations

import ctypes.util
import importlib.util
import shutil
from pathlib import Path

HEADERS = ("/usr/include/libaio.h", "/usr/local/include/libaio.h")


def deepspeed() -> str | None:
    """None where deepspeed is installed."""
    return None if importlib.util.find_spec("deepspeed") else "deepspeed is not installed"


def cpu_adam() -> str | None:
    """None where deepspeed's Adam for the host can be compiled."""
    missing = [name for name in ("g++", "ninja") if shutil.which(name) is None]
    if missing:
        return f"deepspeed compiles its Adam for the host, and {' and '.join(missing)} is not installed"
    return deepspeed()


def disk_swap() -> str | None:
    """None where deepspeed's asynchronous file access can be compiled, too."""
    if ctypes.util.find_library("aio") is None or not any(Path(one).exists() for one in HEADERS):
        return "deepspeed's swapping to a disk needs libaio and its header (the package libaio-dev)"
    return cpu_adam()
