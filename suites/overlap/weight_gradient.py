"""The baseline, except that weight gradients are computed during the reduce-scatters of the backward pass."""

from suites.overlap.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with asynchronous reduce-scatters in the backward pass."""
    return subject.changed(weight_gradient_overlaps=True)
