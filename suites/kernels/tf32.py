"""fp32 matrix products in TF32, as an Ampere GPU or later has them: the baseline that fp32 training uses.

Inputs and results stay fp32; each product rounds its factors to 10 bits of mantissa
(torch.backends.cuda.matmul.allow_tf32, off by default). Forward and backward passes alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from harness.records import HostInfo, Unavailable
from suites.kernels.autocast_bf16 import PRODUCTS
from suites.kernels.op_replacement import STEP, require_full_step
from suites.kernels.subject import Subject

AMPERE = (8, 0)
"""Compute capability from which GPUs have TF32."""

TOLERANCE = 5e-3
"""Tolerance relative to the largest value: a TF32 rounding is 2^-11, and a result passes several."""


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    here = host.device == "cuda" and torch.version.hip is None
    has_it = here and torch.cuda.get_device_capability() >= AMPERE
    return None if has_it else "TF32 products need a GPU of NVIDIA, Ampere or later"


@contextmanager
def products_in_tf32() -> Iterator[None]:
    """Let fp32 products on CUDA be in TF32 inside the block."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


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
