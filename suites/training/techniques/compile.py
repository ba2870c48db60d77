"""torch.compile (ASPLOS 2024, doi 10.1145/3620665.3640366): both passes as generated kernels. With `fsdp2` it
needs `scope: blocks`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from suites.training.declared import CompileSettings
from suites.training.host_memory import Resources
from suites.training.models.model import blocks_of
from suites.training.step import Contract, TrainingStep, Within
from suites.training.workload import Workload

TOLERANCE = 1e-4
"""Share of the first loss: generated kernels sum in another order, thousands of roundings of 2^-24 each."""

PARTITIONED = "the formula counts what eager layers keep; compiled ones keep what Inductor chooses"
PRIVATE_POOL = "CUDA graphs keep their buffers in a private pool, whose size the dry run does not predict"
NO_DRY_RUN = {
    "reduce-overhead": PRIVATE_POOL,
    "max-autotune": PRIVATE_POOL,
    "max-autotune-no-cudagraphs": "autotuning chooses kernels, and with them buffers, by their times",
}
"""Why a step compiled in this mode has no dry run."""


def contract(settings: CompileSettings) -> Contract:
    """Return the tolerance of fp32 sums in another order."""
    return Within(TOLERANCE)


def applies_to(workload: Workload, settings: CompileSettings) -> str | None:
    """Return why one graph cannot have all of the model; None where it can."""
    if workload.num_experts is not None:
        return "a mixture of experts (num_experts) reads how many tokens each expert has, which ends a graph"
    return None


def apply(step: TrainingStep, settings: CompileSettings) -> TrainingStep:
    """Return the step with its model compiled for its one shape, at its first call."""
    return replace(
        step,
        wraps=(*step.wraps, partial(compile_model, settings)),
        features=step.features.but(activations=PARTITIONED),
        no_dry_run=step.no_dry_run or NO_DRY_RUN.get(settings.mode),
    )


def compile_model(settings: CompileSettings, model: nn.Module, resources: Resources) -> nn.Module:
    """Compile the model or its layers in place: parameters keep their names."""
    parts = [model] if settings.scope == "model" else blocks_of(model)
    for part in parts:
        part.compile(dynamic=False, mode=settings.mode)
    return model
