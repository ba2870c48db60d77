"""torch.optim.AdamW with foreach=True: each pass over all tensors together; torch's default on CUDA."""

from __future__ import annotations

from dataclasses import replace

from suites.host_optimizer.subject import Subject, torch_adamw


def apply(subject: Subject) -> Subject:
    """Return the subject updated by foreach functions."""
    return replace(subject, make=torch_adamw(foreach=True, fused=False), implementation="foreach")
