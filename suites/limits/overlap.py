"""Communication hides behind computation, or computation behind it, as far as both last."""

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
