"""The optimizations of the kernels suite as functions of their settings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from harness.records import Unavailable

if TYPE_CHECKING:
    from suites.kernels.subject import Subject


def autocast_bf16(subject: Subject) -> Subject:
    """bf16 where torch's autocast list says so (arXiv 1710.03740): matrix products and what follows.

    Inputs and weights stay fp32; each is narrowed at its product, and that is timed too. Raises `Unavailable`
    for what autocast leaves unchanged.
    """
    import torch

    from suites.kernels import training_step

    workload = subject.workload
    if workload.operation not in training_step.PRODUCTS:
        raise Unavailable(
            f"autocast leaves {workload.operation} in the type of its inputs: it has no matrix products"
        )
    if workload.dtype == "bf16":
        raise Unavailable("the inputs are bf16 already: autocast would change nothing")
    if workload.operation == training_step.STEP:
        training_step.require_full_step(subject, "autocast_bf16")
        return training_step.with_techniques(subject, [("mixed_precision", {})])
    return replace(
        subject,
        around=partial(torch.autocast, subject.device.type, torch.bfloat16),  # narrowed weights are not kept
        precision="bf16",
        tolerance=max(subject.tolerance, training_step.BF16_TOLERANCE),
    )


def fused_optimizer(subject: Subject) -> Subject:
    """torch.optim.AdamW with fused=True: one kernel for all tensors, each read and written once.

    Raises `Unavailable` where nothing is updated.
    """
    from suites.kernels.adamw import fused
    from suites.kernels.training_step import STEP, replace_operation, with_techniques

    workload = subject.workload
    if workload.operation == STEP and workload.part in ("all", "adamw"):
        return with_techniques(subject, [("optimizer", {"impl": "fused"})])
    return replace_operation(subject, {"adamw": fused}, "fused_optimizer")


def sdpa(subject: Subject) -> Subject:
    """Attention without its score matrix (arXiv 2205.14135): torch's scaled_dot_product_attention.

    It uses the flash kernel on the CPU and on CUDA the backend that torch chooses: cuDNN's or flash in bf16,
    the memory-efficient one in fp32. Raises `Unavailable` where there is no attention.
    """
    from suites.kernels.operations import fused_attention
    from suites.kernels.training_step import STEP, replace_operation, with_techniques

    workload = subject.workload
    if workload.operation == STEP and workload.part in ("all", "attention"):
        return with_techniques(subject, [("attention", {"kernel": "flash"})])
    return replace_operation(subject, {"attention": fused_attention}, "sdpa", attention="sdpa")


def torch_compile(
    subject: Subject, mode: Literal["default", "max-autotune-no-cudagraphs"] = "default"
) -> Subject:
    """torch.compile (ASPLOS 2024, doi 10.1145/3620665.3640366): the operation fused, or the full step.

    Compiled for one shape. In a step of which one part is replaced, only that operation is compiled.
    `mode`: torch.compile's mode.
    """
    import torch

    from suites.kernels.compile_gemm_template import WithItsCode
    from suites.kernels.operations import OPERATIONS
    from suites.kernels.training_step import STEP, replace_operation, with_techniques

    workload = subject.workload
    if workload.operation == STEP and workload.part == "all":
        return with_techniques(subject, [("compile", {"mode": mode})])
    name: str = workload.part if workload.operation == STEP else workload.operation
    function = subject.replace.get(name, OPERATIONS[name].eager)
    changes: dict[str, Any] = {"compiles": True, "compiler_cache": True}
    made: Any = torch.compile(function, dynamic=False, mode=mode)
    if name == "linear_gelu":
        made = WithItsCode(made)
        changes["activation"] = made.activation
    return replace_operation(subject, {name: made}, "torch_compile", **changes)
