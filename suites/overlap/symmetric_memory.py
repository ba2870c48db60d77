"""One-sided puts, a signal per chunk, and computation that begins with the own part (Triton-distributed)."""

from suites.overlap.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with puts and signals in place of collectives."""
    return subject.changed(algorithm="symmetric", experts_by="grouped")
