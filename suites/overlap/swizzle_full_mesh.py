"""Puts to all peers at once, chunk by chunk: what suits a link per pair (Triton-distributed)."""

from suites.overlap.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with puts to all peers at once."""
    return subject.changed(algorithm="symmetric", order="full_mesh", experts_by="grouped")
