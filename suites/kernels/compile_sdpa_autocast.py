"""What a user runs: the whole step compiled, with the fused attention kernel, under bf16 autocast."""

from __future__ import annotations

from suites.kernels import autocast_bf16, compile_sdpa
from suites.kernels.subject import Subject
from suites.kernels.torch_compile import Settings

__all__ = ["Settings", "apply"]


def apply(subject: Subject, settings: Settings) -> Subject:
    """The step with all three; `Unavailable` for an operation alone."""
    return autocast_bf16.apply(compile_sdpa.apply(subject, settings))
