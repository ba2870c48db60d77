"""Every combination of the techniques: what no technique of the training layer states.

The YAML lists the combinations; their techniques are applied after this, in `apply_techniques`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.stack.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """What a combination has besides techniques of the training layer.

    `loads_ahead`: another process makes the next batch while a step runs.
    `fills_memory`: memory that the other techniques save is turned into a larger micro-batch.
    """

    loads_ahead: bool = False
    fills_memory: bool = False


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with both."""
    return replace(subject, loads_ahead=settings.loads_ahead, fills_memory=settings.fills_memory)
