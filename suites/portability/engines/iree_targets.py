"""IREE's compiler for devices that need not be here: each target gets the same StableHLO as the CPU.

Nothing is run: the record has whether it compiles, the bytes and seconds, and for CUDA and ROCm the registers
and spills of the kernel that needs most.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.instruments.triton_kernels.targets import KernelUsage, of_hsaco, of_ptx
from harness.records import HostInfo, Note, Origin, Reading, Unavailable
from suites.portability import stablehlo
from suites.portability.extra import installed, missing
from suites.portability.subject import Compiled, Engine, Subject

if TYPE_CHECKING:
    from suites.portability.capture.graph import Capture

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
    """Return the size of the target's program and what its kernels need; raises the compiler's error."""
    from suites.portability.engines.iree import compile_text

    backend, flags = BACKENDS[target]
    with tempfile.TemporaryDirectory() as folder:
        dump = f"--iree-hal-dump-executable-binaries-to={folder}"
        program = compile_text(capture.stablehlo, backend, [*flags, dump])
        objects = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return Compiled(None, size_B=len(program), readings=usage_readings(objects, target))


def usage_readings(objects: Mapping[str, bytes], target: str) -> Iterator[Reading | Note]:
    """Yield the most registers and spills of any kernel in a program's code objects, by their files' names.

    SPIR-V, for Vulkan and Metal, has no registers.
    """
    try:
        kernels = [kernel for name, code in objects.items() for kernel in _kernels(name, code, target)]
    except Unavailable as reason:
        yield Note(f"registers: not read, {reason}")
        return
    if kernels:
        largest = {
            "registers": max(one.registers for one in kernels),
            "spilled_registers": max(one.spilled_registers for one in kernels),
            "kernels": len(kernels),
        }
        yield from (Reading(name, "1", value, Origin.CALCULATED) for name, value in largest.items())


def _kernels(name: str, code: bytes, target: str) -> list[KernelUsage]:
    if name.endswith(".hsaco"):
        return of_hsaco(code)
    return of_ptx(code.decode(), target.removeprefix("cuda_")) if name.endswith(".ptx") else []
