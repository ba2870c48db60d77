"""Overlap communication with computation, as much of the shorter of both as `overlap` says."""

from __future__ import annotations

from dataclasses import dataclass

from suites.limits.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`overlap`: share of the shorter of both that is hidden."""

    overlap: float


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with that overlap."""
    return changed(subject, overlap=settings.overlap)
