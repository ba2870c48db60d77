"""Chunked loss: the output layer and its loss take some tokens at a time, so few logits exist at once.

Logits take tokens x vocab_size elements, often more than the rest of the model's activations. Each chunk's
logits are computed again in the backward pass, as in activation checkpointing.

What it does not combine with follows from `ROLE` and `EXCLUDES` of either module, and from what `applies_to`
and `apply` refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from harness.bounds import Bounds
from suites.training.contract import EXACT, Contract
from suites.training.roles import Level
from suites.training.step import TrainingStep
from suites.training.workload import Workload

LEVEL = Level.MODEL
EXCLUDES = {
    "tensor_parallel": "it has a loss of its own, over logits that are sharded by vocabulary",
    "zero": "stage 3 gathers the output layer's weight only where the layer itself is called",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose how much is computed at once.

    `chunks`: the number of parts of equal size into which an update's tokens are split.
    """

    chunks: Annotated[int, Bounds(at_least=1)] = 4


def contract(settings: Settings) -> Contract:
    """Return `EXACT`: the same sums, in another order."""
    return EXACT


def applies_to(workload: Workload, settings: Settings) -> str | None:
    """Return why it does not apply to a workload; None where it does."""
    if workload.hf_config is not None:
        return "it replaces the loss of suites.training.models.model alone, not another model's"
    return None


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return the step with its loss in chunks."""
    chunked = partial(chunked_loss, settings.chunks)
    return replace(step, functions={**step.functions, "linear_cross_entropy": chunked})


def chunked_loss(chunks: int, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return the mean cross-entropy of predicting `targets_N` from `x_ND`, as a scalar tensor."""
    parts = zip(x_ND.chunk(chunks), targets_N.chunk(chunks), strict=True)
    sums = [checkpoint(summed_loss, x, weight_VD, targets, use_reentrant=False) for x, targets in parts]
    return torch.stack(sums).sum() / len(targets_N)


def summed_loss(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of one chunk."""
    return F.cross_entropy(F.linear(x_ND, weight_VD).float(), targets_N, reduction="sum")
