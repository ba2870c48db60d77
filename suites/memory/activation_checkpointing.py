"""Activation checkpointing (arXiv 1604.06174): keep less in the forward pass, compute it again in the
backward pass.

`full` keeps each layer's input alone. `selective` (arXiv 2205.05198) keeps the results of the linear layers
too, and computes the cheap and large rest again: the attention core, norms, activations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from harness.records import HostInfo
from suites.memory.step import TrainingStep
from suites.memory.training import blocks_of

KEPT = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default})
"""What linear layers become; the products of attention are `aten.bmm` and are not among them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`mode`: "full" or "selective"."""

    mode: str = "full"


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever torch does."""
    return None


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """The step with every layer checkpointed."""
    if settings.mode not in WRAPS:
        raise ValueError(f"activation_checkpointing: mode {settings.mode!r} is none of {', '.join(WRAPS)}")
    return replace(
        subject,
        wrap=(*subject.wrap, WRAPS[settings.mode]),
        features=replace(subject.features, recompute=settings.mode),
    )


def keep_inputs(model: nn.Module) -> nn.Module:
    """Each layer runs under `checkpoint`: its input is kept, and the state of the random generator."""
    for block in blocks_of(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return model


def keep_matmuls(model: nn.Module) -> nn.Module:
    """Each layer runs under `checkpoint` with a policy: results of its linear layers are kept too."""
    contexts = partial(create_selective_checkpoint_contexts, keep_if_matmul)
    for block in blocks_of(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    return model


def keep_if_matmul(
    context: SelectiveCheckpointContext, operation: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    """Keep the results of linear layers."""
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


WRAPS = {"full": keep_inputs, "selective": keep_matmuls}
