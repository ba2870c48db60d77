"""The run takes longer, on fewer GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bounds import Bounds
from suites.limits.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`run_s`: seconds of the run."""

    run_s: Annotated[float, Bounds(at_least=3600)]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with such runs."""
    return changed(subject, run_s=settings.run_s)
