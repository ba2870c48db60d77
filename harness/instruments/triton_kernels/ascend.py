"""Lower Triton's IR to linalg by triton-ascend's tool; it needs no NPU and no compiler of Huawei's.

triton-ascend is a package `triton` of its own, so it lies in another environment and its tool alone is run.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from harness.instruments.triton_kernels.targets import CompilationFailed
from harness.records import Unavailable

TOOL, VARIABLE = "triton-adapter-opt", "TRITON_ADAPTER_OPT"

PASSES = (
    "--discrete-mask-access-conversion=compile-on-910-95=False force-simt-template=False",
    "--triton-to-annotation",
    "--triton-to-unstructure=compile-on-910-95=False force-simt-template=False",
    "--triton-to-hivm",
    "--triton-to-hfusion",
    "--triton-to-llvm",
    "--bubble-up-operation",
    "--triton-to-linalg=global-kernel=false named-ops=True enable-nd2nz-on-vector=False "
    "enable-select-analysis=True compile-on-910-95=False",
)
"""The passes that triton-ascend 3.2.0 runs (triton/backends/ascend/compiler.py, ttir_to_linalg)."""


def tool() -> str | None:
    """Return the path of the tool, None where it is not found."""
    return shutil.which(os.environ.get(VARIABLE) or TOOL)


def unavailable() -> str | None:
    """Return why nothing can be lowered here; None where the tool is found."""
    if tool() is not None:
        return None
    return (
        f"{TOOL} is not on the PATH and {VARIABLE} does not name it; triton-ascend, in an environment of its "
        "own, has it in triton/backends/ascend"
    )


def lowered(name: str, text: str) -> str:
    """Return a kernel's linalg from its Triton IR; raises `Unavailable` and `CompilationFailed`."""
    found = tool()
    if found is None:
        raise Unavailable(unavailable() or "")
    done = subprocess.run([found, "-", *PASSES], input=text, text=True, capture_output=True, timeout=120)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error:" in line] or [done.stderr.strip()]
        raise CompilationFailed(f"kernel {name} does not lower to linalg: {errors[0][:200]}")
    return done.stdout
