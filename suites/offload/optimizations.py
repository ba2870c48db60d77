"""The optimizations of the host_optimizer suite as functions of their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.offload.host_optimizer import Subject


def adamw_foreach(subject: Subject) -> Subject:
    """torch.optim.AdamW with foreach=True: each pass over all tensors together; torch's default on CUDA."""
    from suites.offload.host_optimizer import torch_adamw

    return replace(subject, make=torch_adamw(foreach=True, fused=False), implementation="foreach")


def adamw_fused(subject: Subject) -> Subject:
    """torch.optim.AdamW with fused=True: one vectorized pass, each value read and written once."""
    from suites.offload.host_optimizer import torch_adamw

    return replace(subject, make=torch_adamw(foreach=False, fused=True), implementation="fused")
