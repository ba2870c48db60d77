"""Every operation of the suite, by name; each has a file."""

from __future__ import annotations

from suites.kernels.operations import (
    adamw,
    attention,
    copy,
    gelu_bias,
    layer_norm,
    linear_cross_entropy,
    linear_gelu,
    matmul,
    pointwise,
    rms_norm,
    rotary,
    softmax,
    swiglu,
)
from suites.kernels.subject import Operation

MODULES = (
    softmax,
    rms_norm,
    layer_norm,
    swiglu,
    gelu_bias,
    linear_gelu,
    rotary,
    linear_cross_entropy,
    adamw,
    pointwise,
    attention,
    copy,
    matmul,
)

OPERATIONS: dict[str, Operation] = {one.OPERATION.name: one.OPERATION for one in MODULES}
