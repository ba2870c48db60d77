"""IREE's compiler for devices that need not be here: each target gets the same StableHLO as the CPU.

Nothing is run: the record has whether it compiles, and the bytes and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from harness.records import HostInfo
from suites.portability import stablehlo
from suites.portability.capture.graph import Capture
from suites.portability.engines.iree import compile_text
from suites.portability.extra import installed, missing
from suites.portability.subject import Compiled, Engine, Subject

BACKENDS = {
    "cuda_sm_80": ("cuda", ["--iree-cuda-target=sm_80"]),
    "cuda_sm_90": ("cuda", ["--iree-cuda-target=sm_90"]),
    "cuda_sm_100": ("cuda", ["--iree-cuda-target=sm_100"]),
    "rocm_gfx90a": ("rocm", ["--iree-rocm-target=gfx90a"]),
    "rocm_gfx942": ("rocm", ["--iree-rocm-target=gfx942"]),
    "vulkan": ("vulkan-spirv", []),
    "metal": ("metal-spirv", []),
}
"""Targets: IREE's backend and its flags."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`target`: a name of BACKENDS."""

    target: str = "cuda_sm_80"


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    return missing("iree.compiler") or stablehlo.unavailable()


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject compiled by IREE for a target."""
    compile_for = partial(compiled, target=settings.target)
    engine = Engine("iree", compile_for, settings.target, version=installed("iree-base-compiler"))
    return replace(subject, engine=engine)


def compiled(capture: Capture, target: str) -> Compiled:
    """Return the size of the target's program; raises the compiler's error."""
    backend, flags = BACKENDS[target]
    return Compiled(None, size_B=len(compile_text(capture.stablehlo, backend, flags)))
