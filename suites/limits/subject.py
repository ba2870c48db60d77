"""The limits suite's types: a published training step, a run to calculate, and the inputs of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from suites.limits.workload import Workload


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload with the inputs that a variant gives it, and the seed of its draws."""

    workload: Workload
    seed: int
    is_baseline: bool = True  # its walls get a band; those of variants are single values


def changed(subject: Subject, **inputs: Any) -> Subject:
    """Return the variant with other inputs."""
    return replace(subject, workload=replace(subject.workload, **inputs), is_baseline=False)
