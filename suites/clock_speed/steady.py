"""All ranks at the mean of slow and full speed, all the time."""

from __future__ import annotations

from suites.clock_speed.subject import Speeds, Subject


def apply(subject: Subject) -> Subject:
    """Return the subject at a steady speed."""
    return subject.at(Speeds("steady"))
