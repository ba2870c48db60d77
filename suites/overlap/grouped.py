"""Products of all experts by one grouped GEMM, still after the collective."""

from suites.overlap.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with tokens sorted by expert and one call of torch's grouped_mm."""
    return subject.changed(experts_by="grouped")
