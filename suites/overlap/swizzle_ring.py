"""Puts to one peer after another, in rotated order: what suits a switch (Triton-distributed)."""

from suites.overlap.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with puts in rotated order."""
    return subject.changed(algorithm="symmetric", order="ring", experts_by="grouped")
