"""Triton's IR lowered towards Huawei's Ascend by triton-ascend's `triton-adapter-opt`: Triton IR to linalg.

triton-ascend is a package `triton` of its own, so it is installed in another environment and only its tool is
run. What follows it, from linalg to the NPU's code, is Huawei's compiler, which no package has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from functools import partial

from harness.instruments.triton_kernels.targets import CompilationFailed, triton_ir
from harness.records import HostInfo, Origin, Reading, Unavailable
from suites.portability.capture.graph import Capture
from suites.portability.session import message_of
from suites.portability.subject import Compiled, Engine, Subject, Workload
from suites.portability.triton_kernels import kernels_of

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


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where the tool is found."""
    if tool() is not None:
        return None
    return (
        f"{TOOL} is not on the PATH and {VARIABLE} does not name it; triton-ascend, installed in an environment of "
        "its own, has it in triton/backends/ascend"
    )


def tool() -> str | None:
    """Return the path of the tool, None where it is not found."""
    return shutil.which(os.environ.get(VARIABLE) or TOOL)


def apply(subject: Subject) -> Subject:
    """Return the subject's kernels lowered for Ascend; raises `Unavailable` where there are none."""
    if subject.workload.hf_config is not None:
        raise Unavailable("our kernels replace operators of this project's model, and this is transformers'")
    kernels_of(subject.workload)
    engine = Engine("triton_ascend", partial(compiled, workload=subject.workload), "ascend", takes_graph=False)
    return replace(subject, engine=engine)


def compiled(capture: Capture, workload: Workload) -> Compiled:
    """Return the bytes of linalg of all kernels; raises `CompilationFailed` with the tool's message."""
    texts = [lowered(kernel.name, triton_ir(kernel)) for kernel in kernels_of(workload)]
    readings = (Reading("kernels", "1", len(texts), Origin.CALCULATED),)
    return Compiled(None, size_B=sum(len(one.encode()) for one in texts), readings=readings)


def lowered(name: str, text: str) -> str:
    """Return one kernel's linalg."""
    found = tool()
    if found is None:
        raise Unavailable(f"{TOOL} is gone")
    done = subprocess.run([found, "-", *PASSES], input=text, text=True, capture_output=True, timeout=120)
    if done.returncode:
        raise CompilationFailed(f"kernel {name} does not lower to linalg: {message_of(Exception(done.stderr))}")
    return done.stdout
