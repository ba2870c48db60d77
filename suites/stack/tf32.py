"""fp32 with matrix products in TF32: what fp32 training is on an Ampere GPU or later, as another baseline.

Inputs and results stay fp32; each product rounds its factors to 10 bits of mantissa
(torch.backends.cuda.matmul.allow_tf32, off by default). Forward and backward passes alike.
"""

from __future__ import annotations

from dataclasses import replace

from suites.stack.suite import Subject
from suites.training.tf32 import products_in_tf32
from suites.training.tf32 import unavailable as unavailable

TOLERANCE = 5e-3
"""Share of the first loss: as for bf16, whose rounding is four times as coarse; a product passes several."""


def apply(subject: Subject) -> Subject:
    """Return the subject with its products in TF32."""
    return replace(subject, whole=products_in_tf32, products="tf32", tolerance=TOLERANCE)
