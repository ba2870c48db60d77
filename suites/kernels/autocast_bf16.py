"""bf16 where torch's autocast list says so (arXiv 1710.03740): matrix products and what follows from them.

Inputs and weights stay fp32; each is narrowed at its product, and that is timed too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from harness.records import Unavailable
from suites.kernels.op_replacement import BF16_TOLERANCE, STEP, require_full_step
from suites.kernels.step.training_step import with_techniques
from suites.kernels.subject import Subject

PRODUCTS = ("attention", "linear_cross_entropy", STEP)
"""Operations with products of matrices: aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP."""


def around(device_type: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return torch.autocast, entered anew at each call; narrowed weights are not kept for the next."""
    return partial(torch.autocast, device_type, torch.bfloat16)


def apply(subject: Subject) -> Subject:
    """Return the subject under autocast; raises `Unavailable` for what autocast leaves unchanged."""
    workload = subject.workload
    if workload.operation not in PRODUCTS:
        raise Unavailable(
            f"autocast leaves {workload.operation} in the type of its inputs: it has no matrix products"
        )
    if workload.dtype == "bf16":
        raise Unavailable("the inputs are bf16 already: autocast would change nothing")
    if workload.operation == STEP:
        require_full_step(subject, "autocast_bf16")
        return with_techniques(subject, [("mixed_precision", {})])
    tolerance = max(subject.tolerance, BF16_TOLERANCE)
    return replace(subject, around=around(subject.device.type), precision="bf16", tolerance=tolerance)
