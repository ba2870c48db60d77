"""Our own Triton kernels (suites/training/triton_kernels) in the place of the operators that they cover.

Interpreted, they are checked at a small shape and not timed. Compiled for this CPU, Triton's IR becomes
linalg by triton-ascend's tool and machine code by torch-mlir's MLIR and LLVM; eager PyTorch computes the rest
of a step. For other targets: what every kernel of the workload needs of a GPU, by Triton's compiler; and for
Huawei's Ascend every kernel to linalg, after which no package has its compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor

from harness.instruments.triton_kernels import targets
from harness.instruments.triton_kernels.launch import compiled_on_cpu
from harness.instruments.triton_kernels.targets import Compilation, triton_ir, usage
from harness.records import Origin, Reading, Unavailable
from suites.portability.graph import Capture
from suites.portability.problem import problem_of
from suites.portability.subject import Compiled
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
    if workload.hf_config is not None:
        raise Unavailable("our kernels replace operators of this project's model, and this is transformers'")
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


SMALL: dict[str, Any] = {
    "micro_batch_size": 1,
    "seq_len": 16,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "num_hidden_layers": 1,
}
"""The shape that is interpreted: heads of 32, the least that our attention has."""


def interpreted(workload: Workload, seed: int) -> Callable[[object], Compiled]:
    """Return what runs the step with our kernels interpreted; raises `Unavailable` where there is none."""
    functions = functions_of(workload)
    return lambda capture: Compiled(problem_of(workload, seed, functions).plain())


def small(workload: Workload) -> Workload:
    """Return the workload at the shape that is interpreted."""
    return replace(workload, **SMALL)


def compiled_here(workload: Workload, seed: int) -> Callable[[object], Compiled]:
    """Return what runs the step with our kernels compiled; raises `Unavailable` where there is none."""
    functions = functions_of(workload)

    def compiled(capture: object) -> Compiled:
        step = problem_of(workload, seed, functions).plain()

        def call() -> Sequence[Tensor]:
            with compiled_on_cpu():
                return step()

        return Compiled(call)

    return compiled


def lowered_for_ascend(capture: Capture, workload: Workload) -> Compiled:
    """Return the bytes of linalg of all kernels; raises `CompilationFailed` with the tool's message."""
    texts = [targets.lowered(kernel.name, triton_ir(kernel)) for kernel in kernels_of(workload)]
    readings = (Reading("kernels", "1", len(texts), Origin.CALCULATED),)
    return Compiled(None, size_B=sum(len(one.encode()) for one in texts), readings=readings)


def compiled_for(capture: Capture, workload: Workload, target: str) -> Compiled:
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
