"""A quota on the processor time of one rank, by the kernel's bandwidth control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds

if TYPE_CHECKING:
    from suites.profiling.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose the rank and the share of a core that it may use."""

    rank: Annotated[int, Bounds(at_least=0, at_most=7)] | None = None  # None: the last
    share: Annotated[float, Bounds(above=0, below=1)] = 0.75  # of a core, for the rank


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with it."""
    return subject.with_injection(kind="cpu_quota", rank=settings.rank, share=settings.share)
