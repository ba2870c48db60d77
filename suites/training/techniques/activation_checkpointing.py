"""Activation checkpointing (arXiv 1604.06174): keep less in the forward pass, recompute the rest later.

`full` keeps each layer's input alone. `selective` (arXiv 2205.05198) also keeps the results of the linear
layers, and recomputes what is large and cheap: attention scores, norms, activation functions.

It combines with every technique but `activation_offload`, which has its role.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from suites.training.contract import EXACT, Contract
from suites.training.model import blocks_of
from suites.training.step import Level, Role, TrainingStep
from suites.training.workload import Resources

LEVEL = Level.ACTIVATIONS
ROLE = Role.ACTIVATIONS

KEPT = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default})
"""The operations of linear layers; the products of attention are `aten.bmm`, and are recomputed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose what is recomputed.

    `mode`: "full" recomputes everything but each layer's input; "selective" also keeps the results of linear
    layers.
    """

    mode: Literal["full", "selective"] = "full"


def contract(settings: Settings) -> Contract:
    """Return `EXACT`: the same operations, some of them twice."""
    return EXACT


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return the step with every layer checkpointed."""
    features = replace(step.features, recompute=settings.mode)
    return replace(step, wraps=(*step.wraps, WRAPS[settings.mode]), features=features)


def keep_inputs(model: nn.Module, resources: Resources) -> nn.Module:
    """Run each layer under `checkpoint`, which keeps its input and the state of the random generator."""
    for block in blocks_of(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return model


def keep_matmuls(model: nn.Module, resources: Resources) -> nn.Module:
    """Run each layer under `checkpoint` with a policy that also keeps the results of its linear layers."""
    contexts = partial(create_selective_checkpoint_contexts, keep_if_matmul)
    for block in blocks_of(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    return model


def keep_if_matmul(
    context: SelectiveCheckpointContext, operation: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    """Return the policy of one operation: linear layers' results are kept."""
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


WRAPS = {"full": keep_inputs, "selective": keep_matmuls}
