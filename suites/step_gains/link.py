"""The same step over another network between nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bounds import Bounds
from suites.step_gains.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`network_B_per_s`: of one GPU, in each direction."""

    network_B_per_s: Annotated[float, Bounds(at_least=1e7)]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the step over such a network."""
    return changed(subject, network_B_per_s=settings.network_B_per_s)
