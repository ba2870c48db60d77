"""fp32 matrix products in TF32, as an Ampere GPU or later has them: the baseline that fp32 training uses.

Inputs and results stay fp32; each product rounds its factors to 10 bits of mantissa
(torch.backends.cuda.matmul.allow_tf32, off by default). Forward and backward passes alike.
"""

from __future__ import annotations

from dataclasses import replace

from harness.records import Unavailable
from suites.kernels.subject import Subject
from suites.kernels.training_step import PRODUCTS, STEP, require_full_step
from suites.training.tf32 import products_in_tf32
from suites.training.tf32 import unavailable as unavailable

TOLERANCE = 5e-3
"""Tolerance relative to the largest value: a TF32 rounding is 2^-11, and a result passes several."""


def apply(subject: Subject) -> Subject:
    """Return the subject with its products in TF32; raises `Unavailable` where it has none in fp32."""
    workload = subject.workload
    if workload.operation not in PRODUCTS:
        raise Unavailable(f"{workload.operation} has no matrix products, which TF32 would change")
    if workload.dtype == "bf16":
        raise Unavailable("the inputs are bf16: TF32 would change nothing")
    if workload.operation == STEP:
        require_full_step(subject, "tf32")
    return replace(
        subject, whole=products_in_tf32, precision="tf32", tolerance=max(subject.tolerance, TOLERANCE)
    )
