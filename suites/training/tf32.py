"""fp32 matrix products in TF32, as an Ampere GPU or later has them: the baseline that fp32 training uses.

Inputs and results stay fp32; each product rounds its factors to 10 bits of mantissa
(torch.backends.cuda.matmul.allow_tf32, off by default). Forward and backward passes alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.records import HostInfo

AMPERE = (8, 0)
"""Compute capability from which GPUs have TF32."""


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
