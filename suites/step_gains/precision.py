"""The same step with narrower matmuls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from suites.step_gains.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`precision`: of matmuls, fp8, mxfp8 or nvfp4."""

    precision: Literal["fp8", "mxfp8", "nvfp4"]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the step in that precision."""
    return changed(subject, precision=settings.precision)
