"""A workload of the stack_published suite: a published ladder, or all ladders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import OnlyWith

OF_LADDERS = OnlyWith("kind", ("ladder",))
OF_ALL = OnlyWith("kind", ("all",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A ladder: one training set-up, made faster step by step, with what was measured after each step.

    `rungs`: each step's name with the value after it, in `unit`, in order; the first is the start.
    `work`: whether each step does the same work faster, or reaches the same result sooner, by whatever means.
    """

    kind: Literal["ladder", "all"] = "ladder"
    rungs: Annotated[dict[str, Any], OF_LADDERS] = field(default_factory=dict)
    unit: Annotated[Literal["token/s", "sample/s", "ms", "s", "min"], OF_LADDERS] = "token/s"
    work: Literal["same", "to a result"] = "same"
    # stated by the source, or secondary: by others' notes about it
    provenance: Annotated[Literal["stated", "secondary"], OF_LADDERS] = "stated"
    device_name: str = ""
    published_by: str = ""
    ladders: Annotated[dict[str, Any], OF_ALL] = field(default_factory=dict)  # name to the fields of a ladder
    source: str = ""
