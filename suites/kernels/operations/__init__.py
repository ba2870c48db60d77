"""Every operation of the suite, by name."""

from __future__ import annotations

from suites.kernels.operations import adamw, products, rowwise
from suites.kernels.subject import Operation

OPERATIONS: dict[str, Operation] = {
    one.name: one
    for one in (
        rowwise.SOFTMAX,
        rowwise.RMS_NORM,
        rowwise.LAYER_NORM,
        rowwise.SWIGLU,
        rowwise.GELU_BIAS,
        products.LINEAR_GELU,
        products.ROTARY,
        products.LINEAR_CROSS_ENTROPY,
        adamw.OPERATION,
        rowwise.POINTWISE,
        products.ATTENTION,
        rowwise.COPY,
        products.MATMUL,
    )
}
