"""Liger-Kernel's Triton kernels (arXiv 2410.10989), a peer, through its own functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from harness.records import HostInfo
from suites.kernels.operations import LAYER_NORM_EPSILON, RMS_NORM_EPSILON
from suites.kernels.subject import Subject
from suites.kernels.training_step import missing, replace_operation
from suites.training.models.head_loss import liger_linear_cross_entropy


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run: Triton has no CPU target, and Liger's kernels are not interpreted."""
    if host.device != "cuda":
        return "Liger's Triton kernels need a GPU"
    return missing("liger_kernel", "liger")


def liger(name: str, *arguments: Any) -> Any:
    """Return what one of Liger's autograd functions gives."""
    from liger_kernel import ops

    return getattr(ops, f"Liger{name}Function").apply(*arguments)


def rms_norm(x_ND: Tensor, weight_D: Tensor) -> Any:
    """Map (N, D) and (D) to (N, D); the incoming gradient is not overwritten, since it is reused."""
    in_place = False
    return liger("RMSNorm", x_ND, weight_D, RMS_NORM_EPSILON, 0.0, "llama", in_place)


def layer_norm(x_ND: Tensor, weight_D: Tensor, bias_D: Tensor) -> Any:
    """Map (N, D), (D) and (D) to (N, D)."""
    return liger("LayerNorm", x_ND, weight_D, bias_D, LAYER_NORM_EPSILON)


def rotary(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Any:
    """Map (B, H, T, K) to the same shape. Liger rotates queries and keys in one call: its keys are one head
    of x."""
    return liger("Rope", x_BHTK, x_BHTK[:, :1], cos_TK.unsqueeze(0), sin_TK.unsqueeze(0))[0]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": partial(liger, "Softmax"),
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "swiglu": partial(liger, "SiLUMul"),
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
