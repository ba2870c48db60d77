"""Triton's compiler for GPUs that need not be here: what every kernel of the workload needs of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from harness.instruments.triton_kernels.targets import usage
from harness.records import Origin, Reading, Unavailable
from suites.portability.subject import Compiled, Engine, Subject
from suites.portability.triton_kernels import kernels_of
from suites.portability.workload import Workload

if TYPE_CHECKING:
    from suites.portability.capture.graph import Capture


@dataclass(frozen=True, slots=True)
class Settings:
    """`target`: a name of `instruments.triton_kernels.targets.TARGETS`."""

    target: str = "sm_80"


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject's kernels compiled for a target; raises `Unavailable` where there are none."""
    import triton

    if subject.workload.hf_config is not None:
        raise Unavailable("our kernels replace operators of this project's model, and this is transformers'")
    kernels_of(subject.workload)
    compile_for = partial(compiled, workload=subject.workload, target=settings.target)
    engine = Engine(
        "triton", compile_for, settings.target, version=str(triton.__version__), takes_graph=False
    )
    return replace(subject, engine=engine)


def compiled(capture: Capture, workload: Workload, target: str) -> Compiled:
    """Return the most registers, shared memory and spills of any kernel; raises `CompilationFailed`."""
    usages = [usage(kernel, target) for kernel in kernels_of(workload)]
    largest = {
        "registers": ("1", [one.registers for one in usages]),
        "shared_memory": ("B", [one.shared_memory_B for one in usages]),
        "spilled_registers": ("1", [one.spilled_registers for one in usages]),
    }
    readings = [Reading(name, unit, max(each), Origin.CALCULATED) for name, (unit, each) in largest.items()]
    readings.append(Reading("kernels", "1", len(usages), Origin.CALCULATED))
    return Compiled(None, readings=tuple(readings))
