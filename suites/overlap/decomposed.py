"""The collective in chunks, each followed by its part of the computation (Wang et al., ASPLOS 2023)."""

from suites.overlap.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with the collective and the computation in chunks."""
    return subject.changed(algorithm="decomposed", experts_by="grouped")
