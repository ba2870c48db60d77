"""The same step without the overlap of tensor-parallel collectives and matmuls."""

from __future__ import annotations

from harness.records import Unavailable
from suites.step_gains.subject import Subject, changed


def apply(subject: Subject) -> Subject:
    """Return the step with all tensor-parallel communication exposed; raises `Unavailable` without any."""
    if int(subject.workload.layout.get("tp", 1)) == 1:
        raise Unavailable("tp 1: there are no tensor-parallel collectives to overlap")
    return changed(subject, tensor_overlap=False)
