"""What a user runs in fp32: the whole step compiled, with the fused attention kernel."""

from __future__ import annotations

from harness.records import Unavailable
from suites.kernels import sdpa, torch_compile
from suites.kernels.op_replacement import STEP, require_full_step
from suites.kernels.subject import Subject
from suites.kernels.torch_compile import Settings

__all__ = ["Settings", "apply"]


def apply(subject: Subject, settings: Settings) -> Subject:
    """The step with sdpa, compiled; `Unavailable` for an operation alone."""
    if subject.workload.operation != STEP:
        raise Unavailable(f"compile_sdpa is for a whole step, not for {subject.workload.operation} alone")
    require_full_step(subject, "compile_sdpa")
    return torch_compile.apply(sdpa.apply(subject), settings)
