"""fp32 with matrix products in TF32: what fp32 training is on an Ampere GPU or later, as another baseline.

Inputs and results stay fp32; each product rounds its factors to 10 bits of mantissa
(torch.backends.cuda.matmul.allow_tf32, off by default). Forward and backward passes alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from harness.records import HostInfo
from suites.stack.subject import Subject

AMPERE = (8, 0)
"""Compute capability from which GPUs have TF32."""

TOLERANCE = 5e-3
"""Share of the first loss: as for bf16, whose rounding is four times as coarse; a product passes several."""


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    here = host.device == "cuda" and torch.version.hip is None
    has_it = here and torch.cuda.get_device_capability() >= AMPERE
    return None if has_it else "TF32 products need a GPU of NVIDIA, Ampere or later"


@contextmanager
def fp32_products_in_tf32() -> Iterator[None]:
    """Let fp32 products on CUDA be in TF32 inside the block."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def apply(subject: Subject) -> Subject:
    """Return the subject with its products in TF32."""
    return replace(subject, whole=fp32_products_in_tf32, products="tf32", tolerance=TOLERANCE)
