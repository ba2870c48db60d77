"""One rank at reduced speed, all others at full speed."""

from __future__ import annotations

from suites.clock_speed.subject import Speeds, Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with rank 0 slow."""
    return subject.at(Speeds("one_slow"))
