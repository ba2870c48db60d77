"""A sleep before every n-th launch of a linear layer on one rank, as by a busy thread of Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds

if TYPE_CHECKING:
    from suites.profiling.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose the rank and its sleeps."""

    rank: Annotated[int, Bounds(at_least=0, at_most=7)] | None = None  # None: the last
    seconds: Annotated[float, Bounds(above=0, at_most=1)] = 0.002  # before each chosen launch
    every: Annotated[int, Bounds(at_least=1)] = 2  # n: each n-th linear layer of the forward pass


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with it."""
    return subject.with_injection(
        kind="launch_sleep", rank=settings.rank, seconds=settings.seconds, every=settings.every
    )
