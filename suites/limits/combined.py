"""Several of the others at once: hidden communication, a batch that grows, and models that are no deeper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bounds import Bounds
from suites.limits.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `overlap`, of `larger_batch` and of `wider`; null leaves an input as it is."""

    overlap: Annotated[float, Bounds(at_least=0, at_most=1)] | None
    batch_exponent: Annotated[float, Bounds(at_least=0, at_most=1)] | None
    depth_exponent: Annotated[float, Bounds(at_least=0, at_most=1)] | None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with all of them."""
    names = ("overlap", "batch_exponent", "depth_exponent")
    given = {name: getattr(settings, name) for name in names}
    return changed(subject, **{name: value for name, value in given.items() if value is not None})
