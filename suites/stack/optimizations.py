"""The optimizations of the stack suite as functions of their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.stack.suite import Subject


def factorial(subject: Subject, loads_ahead: bool = False, fills_memory: bool = False) -> Subject:
    """Every combination of the techniques: what no technique of the training layer states.

    The YAML lists the combinations; their techniques are applied after this, in `apply_techniques`.
    `loads_ahead`: another process makes the next batch while a step runs. `fills_memory`: memory that the
    other techniques save is turned into a larger micro-batch.
    """
    return replace(subject, loads_ahead=loads_ahead, fills_memory=fills_memory)
