"""Larger models are wider and no deeper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bounds import Bounds
from suites.limits.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`depth_exponent`: layers grow with this power of the parameters."""

    depth_exponent: Annotated[float, Bounds(at_least=0, at_most=1)]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with models of such a depth."""
    return changed(subject, depth_exponent=settings.depth_exponent)
