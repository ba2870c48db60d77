"""Chunked loss: the output layer and its loss take some tokens at a time, so few logits exist at once.

Logits take tokens x vocab_size elements, often more than the rest of the model's activations. Each chunk's
logits are computed again in the backward pass, as in activation checkpointing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from suites.training.declared import ChunkedLossSettings
from suites.training.step import EXACT, Contract, TrainingStep
from suites.training.workload import Workload


def contract(settings: ChunkedLossSettings) -> Contract:
    """Return `EXACT`: the same sums, in another order."""
    return EXACT


def applies_to(workload: Workload, settings: ChunkedLossSettings) -> str | None:
    """Return why it does not apply to a workload; None where it does."""
    if workload.hf_config is not None:
        return "it replaces the loss of suites.training.models.model alone, not another model's"
    return None


def apply(step: TrainingStep, settings: ChunkedLossSettings) -> TrainingStep:
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
