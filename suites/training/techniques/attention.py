"""Flash attention (arXiv 2205.14135): torch's fused scaled_dot_product_attention, without a score matrix.

Explicit attention keeps scores, masked scores, weights and dropped weights, each of size (batch, heads,
seq_len, seq_len), per layer. The fused kernel keeps its output and one number per row, and computes the
scores again in the backward pass.
"""

from __future__ import annotations

from dataclasses import replace

from suites.training.declared import AttentionSettings
from suites.training.step import TrainingStep

KERNELS = {"flash": "sdpa", "explicit": "explicit"}
"""Each kernel, and the model's name for it."""


def apply(step: TrainingStep, settings: AttentionSettings) -> TrainingStep:
    """Return the step with that kernel in every layer."""
    kind = KERNELS[settings.kernel]
    return replace(step, attention=kind, features=replace(step.features, attention=kind))
