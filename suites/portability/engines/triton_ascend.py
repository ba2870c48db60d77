"""Triton's IR lowered towards Huawei's Ascend by triton-ascend's tool: every kernel to linalg.

What follows, from linalg to the NPU's code, is Huawei's compiler, which no package has.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from harness.instruments.triton_kernels import targets
from harness.instruments.triton_kernels.targets import triton_ir
from harness.records import HostInfo, Origin, Reading, Unavailable
from suites.portability.capture.graph import Capture
from suites.portability.subject import Compiled, Engine, Subject
from suites.portability.triton_kernels import kernels_of
from suites.portability.workload import Workload


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where the tool is found."""
    return targets.unavailable()


def apply(subject: Subject) -> Subject:
    """Return the subject's kernels lowered for Ascend; raises `Unavailable` where there are none."""
    if subject.workload.hf_config is not None:
        raise Unavailable("our kernels replace operators of this project's model, and this is transformers'")
    kernels_of(subject.workload)
    engine = Engine(
        "triton_ascend", partial(compiled, workload=subject.workload), "ascend", takes_graph=False
    )
    return replace(subject, engine=engine)


def compiled(capture: Capture, workload: Workload) -> Compiled:
    """Return the bytes of linalg of all kernels; raises `CompilationFailed` with the tool's message."""
    texts = [targets.lowered(kernel.name, triton_ir(kernel)) for kernel in kernels_of(workload)]
    readings = (Reading("kernels", "1", len(texts), Origin.CALCULATED),)
    return Compiled(None, size_B=sum(len(one.encode()) for one in texts), readings=readings)
