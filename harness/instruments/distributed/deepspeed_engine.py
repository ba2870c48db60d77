"""deepspeed's engine on any device and process group, and its C++ operators.

Operators are compiled once per machine, at first use, and kept in torch's folder for extensions.
"""

from __future__ import annotations

import ctypes.util
import importlib
import importlib.util
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from harness.instruments.distributed.fake_process_group import world_size


def choose_accelerator(device_type: str | None = None) -> None:
    """Make deepspeed use `cpu` or `cuda`, where alone it takes any GPU; None: a GPU where there is one."""
    device_type = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    os.environ["DS_ACCELERATOR"] = device_type
    from deepspeed.accelerator import get_accelerator, set_accelerator

    if get_accelerator().device_name() != device_type:
        module = importlib.import_module(f"deepspeed.accelerator.{device_type}_accelerator")
        set_accelerator(getattr(module, f"{device_type.upper()}_Accelerator")())


def initialize(model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    """Call `deepspeed.initialize` on the chosen accelerator; raises RuntimeError without a process group."""
    import deepspeed
    from deepspeed.utils import groups

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    os.environ.setdefault("LOCAL_RANK", "0")
    backend: Any = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None  # needs a compiler, is for inference
    deepspeed.comm.comm.cdb = None
    groups._WORLD_GROUP = groups._DATA_PARALLEL_GROUP = None
    world_size()  # raises without a process group
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


BUILDERS = {"cpu_adam": "CPUAdamBuilder", "async_io": "AsyncIOBuilder"}
"""The operators: Adam for the host, and asynchronous file access."""

BESIDE = {"async_io": ("pin_memory",)}  # what deepspeed compiles before each (op_builder/async_io.py)
NO_DEBUG_INFORMATION = "-g0"  # undoes deepspeed's -g, which doubles the time of a compilation alone
HEADERS = ("/usr/include/libaio.h", "/usr/local/include/libaio.h")


def missing(operator: str) -> str | None:
    """Return what `operator` needs and this machine lacks, in one line; None where it can be loaded."""
    there: dict[str, object] = {
        "deepspeed": importlib.util.find_spec("deepspeed"),
        "a C++ compiler (g++)": shutil.which(os.environ.get("CXX", "c++")),
        "ninja": shutil.which("ninja", path=programs()),
    }
    if torch.version.cuda and torch.cuda.is_available():  # then it is compiled for CUDA too
        from torch.utils import cpp_extension

        there["the CUDA toolkit (CUDA_HOME)"] = cpp_extension.CUDA_HOME
    if operator == "async_io":
        header = any(Path(one).exists() for one in HEADERS)
        there["libaio with its header (libaio-dev)"] = header and ctypes.util.find_library("aio")
    lacking = [name for name, present in there.items() if not present]
    return f"needs {', '.join(lacking)}: DeepSpeed compiles its {operator} at first use" if lacking else None


def programs() -> str:
    """Return the path on which torch finds ninja, with python's folder for an environment not activated."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([*folders, str(Path(sys.executable).parent)]))


def load(operator: str) -> None:
    """Load `operator`, compiled first if needed, for minutes; deepspeed would compile it with other flags."""
    choose_accelerator()
    from torch.utils import cpp_extension

    default = cpp_extension.get_default_build_root()
    for one in (*BESIDE.get(operator, ()), operator):
        _clear_lock(one, Path(os.environ.get("TORCH_EXTENSIONS_DIR") or default))
    os.environ["PATH"] = programs()
    builder = getattr(importlib.import_module("deepspeed.ops.op_builder"), BUILDERS[operator])()
    flags = builder.cxx_args
    builder.cxx_args = lambda: [*flags(), NO_DEBUG_INFORMATION]
    builder.load(verbose=False)


def main() -> None:
    """Compile every operator that this machine can, before it is waited for; print what the others lack."""
    for operator in BUILDERS:
        if reason := missing(operator):
            sys.stdout.write(f"{operator}: {reason}\n")
        else:
            load(operator)


def _clear_lock(operator: str, folder: Path) -> None:
    """Remove the lock of a killed compilation; a running one keeps it open (torch/utils/file_baton.py)."""
    processes = psutil.process_iter(["open_files"])
    held = {file.path for one in processes for file in one.info["open_files"] or ()}
    for lock in folder.rglob(f"{operator}/lock"):
        if str(lock.resolve()) not in held:
            lock.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
