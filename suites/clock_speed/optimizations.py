"""The optimizations of the clock_speed suite as functions of their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds

if TYPE_CHECKING:
    from suites.clock_speed.speed_model import Subject


def alternating(
    subject: Subject, dwell_s: Annotated[float, Bounds(at_least=0.02)], together: bool
) -> Subject:
    """All ranks alternate between slow and full speed, with the mean of `steady`.

    `dwell_s`: how long a rank keeps a speed; `together`: ranks change at once, else each by itself.
    """
    from suites.clock_speed.speed_model import Speeds

    return subject.at(Speeds("alternating", dwell_s, together))


def one_slow(subject: Subject) -> Subject:
    """One rank at reduced speed, all others at full speed."""
    from suites.clock_speed.speed_model import Speeds

    return subject.at(Speeds("one_slow"))


def steady(subject: Subject) -> Subject:
    """All ranks at the mean of slow and full speed, all the time."""
    from suites.clock_speed.speed_model import Speeds

    return subject.at(Speeds("steady"))
