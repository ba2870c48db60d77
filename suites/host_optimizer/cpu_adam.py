"""DeepSpeedCPUAdam, ZeRO-Offload's optimizer for the host, which DeepSpeed compiles at first use.

Once a machine, into torch's folder for extensions; before anything is timed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import torch
from torch.utils.cpp_extension import get_default_build_root

from harness.records import Host
from suites.host_optimizer.baseline import Settings
from suites.host_optimizer.subject import ADAMW, Subject

__all__ = ["Settings", "apply", "unavailable"]


def unavailable(host: Host) -> str | None:
    """Names what is missing of deepspeed and what compiles its C++."""
    there = {
        "deepspeed": importlib.util.find_spec("deepspeed"),
        "a C++ compiler (g++)": shutil.which(os.environ.get("CXX", "c++")),
        "ninja": shutil.which("ninja"),
    }
    missing = [name for name, found in there.items() if not found]
    return f"needs {', '.join(missing)}: DeepSpeed compiles its CPU Adam at first use" if missing else None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject updated by DeepSpeed, with as many threads as torch has."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # for an OpenMP of its own
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    clear_locks(Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()))
    return replace(
        subject, make=partial(DeepSpeedCPUAdam, **ADAMW), implementation="DeepSpeedCPUAdam", count=int
    )


def clear_locks(folder: Path) -> None:
    """Remove the lock of a compilation that was killed, for which torch would wait for ever.

    Who compiles holds it open (torch/utils/file_baton.py).
    """
    for lock in folder.rglob("cpu_adam/lock"):
        every = psutil.process_iter(["open_files"])
        if not any(
            file.path == str(lock.resolve()) for one in every for file in one.info["open_files"] or ()
        ):
            lock.unlink(missing_ok=True)
