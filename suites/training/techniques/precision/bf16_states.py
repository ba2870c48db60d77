"""Everything in bf16: parameters, gradients and optimizer states, as torchtune's full fine-tuning in bf16.

With AdamW that is 8 bytes per parameter, half of mixed precision's 16. There is no fp32 copy of anything: an
update smaller than 2^-9 of a parameter is lost, which mixed precision (arXiv 1710.03740, 3.1) keeps.

What it does not combine with follows from `ROLE` and `EXCLUDES` of either module, and from what `applies_to`
and `apply` refuse. Under `fsdp2` gradients are reduced in bf16 too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from suites.training.contract import Contract, Within
from suites.training.roles import Level
from suites.training.step import TrainingStep

LEVEL = Level.MODEL
EXCLUDES = {
    "mixed_precision": "mixed precision has fp32 states, and bf16_states has none",
    "zero": "deepspeed's engine keeps fp32 states next to bf16 parameters",
    "host_update": "it keeps fp32 parameters and states on the host",
}

TOLERANCE = 2e-2
"""Share of the first loss: products, parameters and states each have 8 bits of significand."""

NOTE = "bf16: parameters, gradients, optimizer states (8 B/param with AdamW), activations"


@dataclass(frozen=True, slots=True)
class Settings:
    """Set nothing: all of the step is in bf16."""


def contract(settings: Settings) -> Contract:
    """Return the tolerance of products and updates rounded to bf16."""
    return Within(TOLERANCE)


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return the step with its model, and so its gradients and states, in bf16."""
    unlike = (*step.features.states_unlike, "the formula has fp32 states; this step's are bf16")
    features = replace(step.features, precision="bf16", states_unlike=unlike)
    return replace(step, model_dtype=torch.bfloat16, features=features, notes=(*step.notes, NOTE))
