"""All ranks alternate between slow and full speed, with the mean of `steady`."""

from __future__ import annotations

from dataclasses import dataclass

from suites.clock_speed.subject import Speeds, Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose how long a rank keeps a speed, in s, and whether ranks change together or each by itself."""

    dwell_s: float
    together: bool


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject at alternating speeds."""
    return subject.at(Speeds("alternating", settings.dwell_s, settings.together))
