"""Several micro-batches per update: gradients are reduced once, parameters gathered per micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from harness.bounds import Bounds
from suites.interconnect_formula.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`gradient_accumulation_steps`: micro-batches per update."""

    gradient_accumulation_steps: Annotated[int, Bounds(at_least=2)]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with that many micro-batches per update; a step is still one micro-batch."""
    return replace(subject, gradient_accumulation_steps=settings.gradient_accumulation_steps)
