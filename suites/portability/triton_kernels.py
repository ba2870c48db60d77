"""Which of our Triton kernels a workload's operators have, to run them and to compile them for targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from harness.instruments.triton_kernels.targets import Compilation
from harness.records import Unavailable
from suites.portability.workload import Workload

OF_OPERATION: dict[str, tuple[str, ...]] = {
    "softmax": ("softmax",),
    "rms_norm": ("rms_norm",),
    "swiglu": ("swiglu",),
    "attention": ("attention",),
    "cross_entropy": ("linear_cross_entropy",),
    "block": ("rms_norm", "swiglu", "rotary", "attention"),
    "training_step": ("rms_norm", "swiglu", "rotary", "attention", "linear_cross_entropy"),
}
"""Modules of suites/training/triton_kernels by operation. Matrix products are left to PyTorch's libraries."""


def names_of(workload: Workload) -> tuple[str, ...]:
    """Return the modules of a workload's kernels, AdamW's too where it updates; raises `Unavailable`."""
    if workload.operation not in OF_OPERATION:
        raise Unavailable(f"there is no Triton kernel here for {workload.operation}")
    return (*OF_OPERATION[workload.operation], *(("adamw",) if workload.passes == "update" else ()))


def modules_of(workload: Workload) -> list[ModuleType]:
    """Return the modules of a workload's kernels."""
    return [_module(name) for name in names_of(workload)]


def functions_of(workload: Workload) -> dict[str, Callable[..., Any]]:
    """Return the functions that replace operators of the step's forward and backward pass."""
    names = [name for name in names_of(workload) if name != "adamw"]
    return {name: getattr(_module(name), name) for name in names}


def kernels_of(workload: Workload) -> Sequence[Compilation]:
    """Return every kernel of the workload, for its type."""
    return [kernel for name in names_of(workload) for kernel in _module(name).kernels(workload.dtype)]


def _module(name: str) -> Any:
    return import_module(f"suites.training.triton_kernels.{name}")
