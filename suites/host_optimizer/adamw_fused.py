"""torch.optim.AdamW with fused=True: one vectorized pass, each value read and written once."""

from __future__ import annotations

from dataclasses import replace

from suites.host_optimizer.subject import Subject, torch_adamw


def apply(subject: Subject) -> Subject:
    """Return the subject updated by torch's fused kernel."""
    return replace(subject, make=torch_adamw(foreach=False, fused=True), implementation="fused")
