"""More GPUs share the fast link."""

from __future__ import annotations

from dataclasses import dataclass

from harness.bounds import PositiveInt
from suites.limits.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`node_size`: GPUs of a node."""

    node_size: PositiveInt


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject on such nodes."""
    return changed(subject, node_size=settings.node_size)
