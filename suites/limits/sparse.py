"""A mixture of experts, of which each token uses some: expert parallelism becomes possible."""

from __future__ import annotations

from dataclasses import dataclass

from harness.bounds import PositiveInt
from suites.limits.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`experts`: of each layer; `experts_per_token`: those that one token uses, which the FLOP count."""

    experts: PositiveInt
    experts_per_token: PositiveInt


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with such models."""
    return changed(subject, experts=settings.experts, experts_per_token=settings.experts_per_token)
