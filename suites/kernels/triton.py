"""Our own Triton kernels, one file per operation in triton_kernels/.

On a CPU they are interpreted at small shapes to check their results, and compiled for GPUs that need not be
present to report their resources; they are never timed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from harness.instruments.triton_kernels.targets import TARGETS, CompilationFailed, usage
from harness.records import Note, Origin, Reading, Unavailable
from suites.kernels.subject import IN_PRODUCT, Subject
from suites.kernels.training_step import STEP, replace_operation
from suites.training.triton_kernels import (
    adamw,
    attention,
    gelu_bias,
    layer_norm,
    linear_cross_entropy,
    linear_gelu,
    pointwise,
    rms_norm,
    rotary,
    softmax,
    swiglu,
)

EVERY = (softmax, rms_norm, layer_norm, swiglu, gelu_bias, linear_gelu, rotary, linear_cross_entropy)
MODULES: dict[str, Any] = {
    one.__name__.rpartition(".")[2]: one for one in (*EVERY, adamw, pointwise, attention)
}
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(one, name) for name, one in MODULES.items()}


def apply(subject: Subject) -> Subject:
    """Return the subject with our kernels; raises `Unavailable` without one, and for a step on a CPU."""
    validate_head_size(subject)
    common: dict[str, Any] = {"attention": "triton", "once": resources, "activation": lambda: IN_PRODUCT}
    is_step = subject.workload.operation == STEP
    if subject.device.type == "cuda":
        shapes = "own" if is_step else "own and edge cases"
        return replace_operation(subject, FUNCTIONS, "triton", **common, compiles=True, shapes=shapes)
    if is_step:
        raise Unavailable("on a CPU Triton kernels are interpreted: a full step would take hours")
    note = "time: not taken; Triton has no compiler for this CPU, and interprets the kernel at small shapes"
    notes = (*subject.notes, note)
    return replace_operation(
        subject, FUNCTIONS, "triton", **common, shapes="edge cases", timed=False, notes=notes
    )


def validate_head_size(subject: Subject) -> None:
    """Raise `Unavailable` for attention with head sizes that our kernel does not support."""
    workload = subject.workload
    step = workload.operation == STEP
    size = workload.hidden_size // workload.num_attention_heads if step else workload.head_size
    uses_attention = "attention" in (workload.operation, workload.part) or (step and workload.part == "all")
    if uses_attention and size not in attention.HEAD_SIZES:
        sizes = ", ".join(map(str, attention.HEAD_SIZES))
        raise Unavailable(f"triton's attention supports head sizes {sizes}, not {size}")


def resources(subject: Subject) -> Iterator[Reading | Note]:
    """Yield registers, shared memory and spills for each target, the most of any of its kernels."""
    name = subject.workload.operation
    if name not in MODULES:
        return
    kernels = MODULES[name].kernels(subject.workload.dtype)
    for target in TARGETS:
        try:
            usages = [usage(kernel, target) for kernel in kernels]
        except (Unavailable, CompilationFailed) as reason:
            yield Note(f"{target}: {reason}")
            continue
        for metric, unit, values in (
            ("registers", "1", [one.registers for one in usages]),
            ("shared_memory", "B", [one.shared_memory_B for one in usages]),
            ("spilled_registers", "1", [one.spilled_registers for one in usages]),
        ):
            yield Reading(metric, unit, max(values), Origin.CALCULATED, target)
