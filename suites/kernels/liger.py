"""Liger-Kernel's Triton kernels (arXiv 2410.10989), a peer, through its own functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from harness.records import HostInfo
from suites.kernels.operations.rowwise import LAYER_NORM_EPSILON, RMS_NORM_EPSILON
from suites.kernels.subject import Subject
from suites.kernels.training_step import missing, replace_operation
from suites.training.models.head_loss import liger_linear_cross_entropy


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run: Triton has no CPU target, and Liger's kernels are not interpreted."""
    if host.device != "cuda":
        return "Liger's Triton kernels need a GPU"
    return missing("liger_kernel", "liger")


def softmax(x_ND: Tensor) -> Tensor:
    """Map (N, D) to (N, D)."""
    from liger_kernel.ops import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x_ND)  # type: ignore[no-any-return]


def rms_norm(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D); the incoming gradient is not overwritten, since it is reused."""
    from liger_kernel.ops import LigerRMSNormFunction

    in_place = False
    return LigerRMSNormFunction.apply(  # type: ignore[no-any-return]
        x_ND, weight_D, RMS_NORM_EPSILON, 0.0, "llama", in_place
    )


def layer_norm(x_ND: Tensor, weight_D: Tensor, bias_D: Tensor) -> Tensor:
    """Map (N, D), (D) and (D) to (N, D)."""
    from liger_kernel.ops import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(  # type: ignore[no-any-return]
        x_ND, weight_D, bias_D, LAYER_NORM_EPSILON
    )


def swiglu(gate_ND: Tensor, up_ND: Tensor) -> Tensor:
    """Map (N, D) and (N, D) to (N, D)."""
    from liger_kernel.ops import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(gate_ND, up_ND)  # type: ignore[no-any-return]


def rotary(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Map (B, H, T, K) to the same shape. Liger rotates queries and keys in one call: its keys are one head
    of x."""
    from liger_kernel.ops import LigerRopeFunction

    turned, _ = LigerRopeFunction.apply(x_BHTK, x_BHTK[:, :1], cos_TK.unsqueeze(0), sin_TK.unsqueeze(0))
    return turned  # type: ignore[no-any-return]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": softmax,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "swiglu": swiglu,
    "rotary": rotary,
    "linear_cross_entropy": liger_linear_cross_entropy,
}

NOTES = {
    "rotary": "Liger rotates queries and keys together: one head is rotated twice",
    "swiglu": (
        "Liger's backward pass writes into gate and up: after the first call their numbers are others, and "
        "the peak memory, read from the second call on, lacks two gradients"
    ),
}


def apply(subject: Subject) -> Subject:
    """Return the subject with Liger's kernels; raises `Unavailable` where it has none."""
    changed = replace_operation(subject, FUNCTIONS, "liger", compiles=True)
    note = NOTES.get(subject.workload.operation)
    if note is None:
        return changed
    writes_inputs = subject.workload.operation == "swiglu"
    return replace(changed, notes=(*changed.notes, note), writes_inputs=writes_inputs)
