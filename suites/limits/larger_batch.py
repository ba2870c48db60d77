"""The batch grows with the data of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bounds import Bounds
from suites.limits.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`batch_exponent`: the batch grows with this power of the tokens."""

    batch_exponent: Annotated[float, Bounds(at_least=0, at_most=1)]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with such batches."""
    return changed(subject, batch_exponent=settings.batch_exponent)
