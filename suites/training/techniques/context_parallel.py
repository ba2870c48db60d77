"""Context parallelism (ring attention, arXiv 2310.01889): ranks share a sequence. It is not built yet.

torch's context parallelism is experimental and replaces CUDA's attention operations alone, so that no step of
it can be compared with a real one on a CPU. No step can have it yet, so it combines with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import Unavailable
from suites.training.contract import EXACT, Contract
from suites.training.step import Level, TrainingStep

LEVEL = Level.PARALLELISM

NOT_BUILT = (
    "torch's context parallelism replaces CUDA's attention operations alone, so it could not be checked "
    "here; tensor_parallel and activation_checkpointing lower activations too"
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
    raise Unavailable(f"context_parallel: {NOT_BUILT}")
