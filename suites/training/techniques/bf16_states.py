"""Everything in bf16: parameters, gradients and optimizer states, as torchtune's full fine-tuning in bf16.

With AdamW that is 8 bytes per parameter, half of mixed precision's 16. There is no fp32 copy of anything: an
update smaller than 2^-9 of a parameter is lost, which mixed precision (arXiv 1710.03740, 3.1) keeps. Under
`fsdp2` gradients are reduced in bf16 too.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from suites.training.declared import BF16StatesSettings
from suites.training.step import Contract, TrainingStep, Within

TOLERANCE = 2e-2
"""Share of the first loss: products, parameters and states each have 8 bits of significand."""

NOTE = "bf16: parameters, gradients, optimizer states (8 B/param with AdamW), activations"


def contract(settings: BF16StatesSettings) -> Contract:
    """Return the tolerance of products and updates rounded to bf16."""
    return Within(TOLERANCE)


def apply(step: TrainingStep, settings: BF16StatesSettings) -> TrainingStep:
    """Return the step with its model, and so its gradients and states, in bf16."""
    unlike = "the formula has fp32 states; this step's are bf16"
    features = step.features.but(precision="bf16", states=unlike)
    return replace(step, model_dtype=torch.bfloat16, features=features, notes=(*step.notes, NOTE))
