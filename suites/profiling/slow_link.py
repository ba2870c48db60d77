"""A slower link between the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds

if TYPE_CHECKING:
    from suites.profiling.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose the rate of the links."""

    rate_B_per_s: Annotated[float, Bounds(at_least=1e5)] = 300e6  # each way


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with it."""
    return subject.with_injection(kind="slow_link", rank=-1, rate_B_per_s=settings.rate_B_per_s)
