"""Overlap communication with computation, as much of the shorter of both as `overlap` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bounds import Bounds
from suites.limits.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`overlap`: share of the shorter of both that is hidden."""

    overlap: Annotated[float, Bounds(at_least=0, at_most=1)]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with that overlap."""
    return changed(subject, overlap=settings.overlap)
