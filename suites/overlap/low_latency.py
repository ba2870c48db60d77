"""An all-gather by words that carry their own flag, in shared memory (NCCL's LL, Triton-distributed)."""

from suites.overlap.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with the low-latency all-gather."""
    return subject.changed(gather="low_latency")
