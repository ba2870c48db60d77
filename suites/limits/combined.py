"""Several of the others at once: hidden communication, a batch that grows, and models that are no deeper."""

from __future__ import annotations

from dataclasses import dataclass

from suites.limits.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `overlap`, of `larger_batch` and of `wider`; null leaves an input as it is."""

    overlap: float | None
    batch_exponent: float | None
    depth_exponent: float | None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with all of them."""
    names = ("overlap", "batch_exponent", "depth_exponent")
    given = {name: getattr(settings, name) for name in names}
    return changed(subject, **{name: value for name, value in given.items() if value is not None})
