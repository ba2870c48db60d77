"""torch.compile (ASPLOS 2024, doi 10.1145/3620665.3640366): the operation fused, or the full step.

Compiled for one shape. In a step of which one part is replaced, only that operation is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from suites.kernels.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`mode`: torch.compile's mode."""

    mode: Literal["default", "max-autotune-no-cudagraphs"] = "default"


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with its function compiled, or its step's forward and backward pass."""
    from suites.kernels.generated_code import WithItsCode
    from suites.kernels.op_replacement import STEP, replace_operation
    from suites.kernels.operations import OPERATIONS
    from suites.kernels.step.training_step import with_techniques

    workload = subject.workload
    if workload.operation == STEP and workload.part == "all":
        return with_techniques(subject, [("compile", {"mode": settings.mode})])
    name: str = workload.part if workload.operation == STEP else workload.operation
    function = subject.replace.get(name, OPERATIONS[name].eager)
    changes: dict[str, Any] = {"compiles": True, "compiler_cache": True}
    made = compiled(function, settings)
    if name == "linear_gelu":
        made = WithItsCode(made)
        changes["activation"] = made.activation
    return replace_operation(subject, {name: made}, "torch_compile", **changes)


def compiled(function: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    """Return `function` compiled for each shape that it gets."""
    import torch

    compiled_function: Callable[..., Any] = torch.compile(function, dynamic=False, mode=settings.mode)
    return compiled_function
