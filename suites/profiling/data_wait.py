"""A wait in the loader before each batch of one rank, as by a slow source of data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds

if TYPE_CHECKING:
    from suites.profiling.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose the rank and the wait."""

    rank: Annotated[int, Bounds(at_least=0, at_most=7)] | None = None  # None: the last
    seconds: Annotated[float, Bounds(above=0, at_most=1)] = 0.02  # before each batch


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with it."""
    return subject.with_injection(kind="data_wait", rank=settings.rank, seconds=settings.seconds)
