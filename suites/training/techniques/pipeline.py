"""Pipeline parallelism (arXiv 1806.03377): ranks share the layers. It is not built yet.

A stage's peak depends on the micro-batches in flight under its schedule (1F1B, interleaved), and a `Trainer`
runs every layer of every micro-batch itself. No step can have it yet, so it combines with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import Unavailable
from suites.training.contract import EXACT, Contract
from suites.training.step import Level, Role, TrainingStep

LEVEL = Level.PARALLELISM
ROLE = Role.PARALLELISM

NOT_BUILT = (
    "a trainer here runs every layer of a micro-batch, and a stage's peak depends on the micro-batches in "
    "flight; a model with one stage's num_hidden_layers is no bound for it"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Set nothing: there is nothing to set yet."""


def unavailable() -> str | None:
    """Return why no step can have it."""
    return NOT_BUILT


def contract(settings: Settings) -> Contract:
    """Return `EXACT`: the same mathematics over ranks."""
    return EXACT


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Raise `Unavailable`."""
    raise Unavailable(f"pipeline: {NOT_BUILT}")
