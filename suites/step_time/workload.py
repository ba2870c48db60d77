"""A workload of the step_time suite: the sources whose steps are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The sources whose steps are compared."""

    sources: list[Any]  # as `source` of a published step names them
    source: str = ""  # who published them, where
