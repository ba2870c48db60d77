"""All ranks alternate between slow and full speed, with the mean of `steady`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds

if TYPE_CHECKING:
    from suites.clock_speed.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose how long a rank keeps a speed, in s, and whether ranks change together or each by itself."""

    dwell_s: Annotated[float, Bounds(at_least=0.02)]
    together: bool


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject at alternating speeds."""
    from suites.clock_speed.subject import Speeds

    return subject.at(Speeds("alternating", settings.dwell_s, settings.together))
