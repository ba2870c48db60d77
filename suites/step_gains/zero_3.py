"""The same step with its parameters sharded over all GPUs (ZeRO-3), without tensor and pipeline ranks."""

from __future__ import annotations

from suites.step_gains.subject import Subject, changed


def apply(subject: Subject) -> Subject:
    """Return the step sharded over all GPUs, one sequence per micro-batch, with full recompute.

    Raises `Unavailable` where the batch has fewer sequences than there are GPUs.
    """
    layout = {"zero": 3, "micro_batch_size": 1, "recompute": "full"}
    return changed(subject, layout=layout)
