"""The memory_published suite's types: a published peak, and the training step that had it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.records import Unavailable
from suites.memory_published.workload import Workload
from suites.training import techniques
from suites.training.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Subject:
    """A published peak and its step. `missing`: why there is none, where torch has one."""

    workload: Workload
    step: TrainingStep | None
    missing: str = ""


def subject_of(workload: Workload, seed: int) -> Subject:
    """Return the step of a published peak, or the first technique of its list that is not built."""
    if workload.program != "torch":
        return Subject(workload, None)
    if reason := not_built(workload.techniques):
        return Subject(workload, None, reason)
    try:
        return Subject(workload, techniques.build_step(asdict(workload), workload.techniques, seed))
    except Unavailable as reason_of_step:
        return Subject(workload, None, str(reason_of_step))


def not_built(listed: Sequence[Any]) -> str:
    """Return which technique or setting of a list does not exist yet; "" where all do."""
    for name, settings in techniques.named(listed):
        if name not in techniques.names():
            return f"the technique {name} is not built"
        try:
            techniques.settings_of(name, settings)
        except ValueError as error:
            return f"not built: {error}"
    return ""
