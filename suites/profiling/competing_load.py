"""Another process on the core of one rank, which takes a known share of its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds

if TYPE_CHECKING:
    from suites.profiling.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose the rank and the share of its core that the other process takes."""

    rank: Annotated[int, Bounds(at_least=0, at_most=7)] | None = None  # None: the last
    share: Annotated[float, Bounds(above=0, below=1)] = 0.25  # of the core, for the other process


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with it."""
    return subject.with_injection(kind="competing_load", rank=settings.rank, share=settings.share)
