"""Workloads of the suites about published values: a peak of memory, and sources of seconds per step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPublishedWorkload:
    """A published peak."""

    row: dict[str, Any] = field(hash=False)  # of peaks.jsonl: class PublishedRun of runs.py
    source: str = ""  # its page


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeWorkload:
    """The sources whose steps are compared."""

    sources: list[Any]  # as `source` of a published step names them
    source: str = ""  # who published them, where


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Some of the published runs."""

    # One run of each source; or of a kind all others: see KINDS in suites/published/runs.py.
    kind: Literal[
        "sample",
        "dense",
        "experts",
        "hybrid",
        "fp8",
        "long_context",
        "full",
        "lora",
        "qlora",
        "post_training",
        "vision",
    ]
    parts: PositiveInt = 1  # into which they are dealt, one run after another
    part: Annotated[int, Bounds(at_least=1, not_above="parts")] = 1
    source: str = ""
