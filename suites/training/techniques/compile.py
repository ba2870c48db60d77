"""torch.compile (ASPLOS 2024, doi 10.1145/3620665.3640366): both passes as generated kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import nn

from suites.training.contract import Contract, Within
from suites.training.model import blocks_of
from suites.training.step import Level, TrainingStep
from suites.training.workload import Resources

LEVEL = Level.COMPILER

TOLERANCE = 1e-4
"""Generated kernels have exponentials and sums of their own: thousands of roundings of 2^-24."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is compiled, and how.

    `mode`: torch.compile's.
    `scope`: "model", all of it as one graph; "blocks", each layer alone, as FSDP2 needs it.
    """

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    scope: Literal["model", "blocks"] = "model"


def contract(settings: Settings) -> Contract:
    """Return a tolerance: fp32 sums are grouped differently."""
    return Within(TOLERANCE)


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return the step with its model compiled for its one shape, at its first call."""
    return replace(
        step,
        wraps=(*step.wraps, partial(compile_model, settings)),
        no_dry_run="what compiled code keeps is decided by the compiler, which fake tensors do not run",
    )


def compile_model(settings: Settings, model: nn.Module, resources: Resources) -> nn.Module:
    """Compile the model or its layers in place: names of parameters stay as they are."""
    parts = [model] if settings.scope == "model" else blocks_of(model)
    for part in parts:
        part.compile(dynamic=False, mode=settings.mode)
    return model
