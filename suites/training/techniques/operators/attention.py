"""Flash attention (arXiv 2205.14135): torch's fused scaled_dot_product_attention, without a score matrix.

Explicit attention keeps scores, masked scores, weights and dropped weights, each of size (batch, heads,
seq_len, seq_len), per layer. The fused kernel keeps its output and one number per row, and computes the
scores again in the backward pass.

What it does not combine with follows from `ROLE` and `EXCLUDES` of either module, and from what `applies_to`
and `apply` refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from suites.training.contract import EXACT, Contract
from suites.training.roles import Level
from suites.training.step import TrainingStep

LEVEL = Level.MODEL

KERNELS = {"flash": "sdpa", "explicit": "explicit"}
"""Each kernel, and the model's name for it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose how attention is computed.

    `kernel`: "flash", torch's fused kernel for this device and type; "explicit", with scores as a tensor.
    """

    kernel: Literal["flash", "explicit"] = "flash"


def contract(settings: Settings) -> Contract:
    """Return `EXACT`: the same sums, taken block by block."""
    return EXACT


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return the step with that kernel in every layer."""
    kind = KERNELS[settings.kernel]
    return replace(step, attention=kind, features=replace(step.features, attention=kind))
