"""How the output layer and the loss are computed: how many logits exist at once, in which type, for how long.

Logits take tokens x vocab_size elements, often more than any other tensor of a step: bf16 logits, their fp32
copy, its log-softmax and the gradients of each.

What it does not combine with follows from `ROLE` and `EXCLUDES` of either module, and from what `applies_to`
and `apply` refuse. The model's output layer must return its logits as they are.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import nn

from harness.bounds import Bounds
from harness.records import Unavailable
from suites.training.contract import EXACT, Contract, Within
from suites.training.models.head_loss import HeadLoss
from suites.training.resources import Resources
from suites.training.roles import Level
from suites.training.step import TrainingStep
from suites.training.workload import Workload

LEVEL = Level.ACTIVATIONS
EXCLUDES = {"tensor_parallel": "it has a loss of its own, over logits that are sharded by vocabulary"}

IN_BF16 = 1e-2
"""Share of the first loss: a loss in bf16 is rounded by 2^-9 of it, and so is each of its terms."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose how many logits exist, and how long.

    `chunks`: the number of parts of a sequence that are taken one after the other.
    `chunked`: what is taken in chunks: "loss" widens and reduces full logits in chunks, as torchtitan's
    chunked_cross_entropy_loss; "output" also computes them in chunks, as torchtune's CEWithChunkedOutputLoss;
    "recompute" computes each chunk's logits again in the backward pass, so that one chunk exists at a time.
    `dtype`: the type in which the loss is computed; None widens logits to fp32.
    `keep_logits`: keep logits through the backward pass and the update, as a script does that has them in a
    variable: "model", as the output layer makes them; "fp32", widened; None keeps none.
    `fused`: one operation for output layer and loss, with gradients in the forward pass: Liger's fused linear
    cross-entropy, or without a GPU the same algorithm in plain PyTorch.
    """

    chunks: Annotated[int, Bounds(at_least=1)] = 1
    chunked: Literal["loss", "output", "recompute"] = "output"
    dtype: Literal["bf16"] | None = None
    keep_logits: Literal["model", "fp32"] | None = None
    fused: bool = False


def contract(settings: Settings) -> Contract:
    """Return `EXACT`, the same sums in another order; or the tolerance of a loss in bf16."""
    return EXACT if settings.dtype is None else Within(IN_BF16)


def applies_to(workload: Workload, settings: Settings) -> str | None:
    """Return why a sequence cannot be taken in such chunks; None where it can."""
    if settings.chunks > workload.seq_len:
        return f"chunks={settings.chunks}: allowed are 1 to seq_len={workload.seq_len}"
    if settings.fused and settings != Settings(fused=True):
        return "fused chooses chunks and types itself; leave out the other settings"
    if settings.chunked == "recompute" and settings.keep_logits is not None:
        return "chunked=recompute keeps no logits; use chunked=loss or output to keep them"
    if settings.keep_logits == "fp32" and settings.dtype is not None:
        return f"keep_logits=fp32 keeps what the loss reads, and dtype={settings.dtype} reads no fp32 logits"
    return None


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return the step with that loss."""
    if settings.fused and torch.cuda.is_available() and importlib.util.find_spec("liger_kernel") is None:
        raise Unavailable("loss: fused needs the extra liger: pip install 'throughput-harness[liger]'")
    unlike = (
        *step.features.activations_unlike,
        "the formula has the logits of all tokens at once",
    )
    features = replace(step.features, activations_unlike=unlike)
    return replace(step, wraps=(*step.wraps, partial(put_into_head, settings)), features=features)


def put_into_head(settings: Settings, model: nn.Module, resources: Resources) -> nn.Module:
    """Let the model's output layer return the loss in place of logits.

    Raises `Unavailable` for a model of which the output layer is not known.
    """
    find = getattr(model, "output_layer", None)
    if find is None:
        raise Unavailable(f"loss: {type(model).__name__} has no output_layer() that returns its output layer")
    head: nn.Module = find()
    chunked = "fused" if settings.fused else settings.chunked
    narrow = torch.bfloat16 if settings.dtype == "bf16" else None
    loss = HeadLoss(head, chunked, settings.chunks, narrow, settings.keep_logits)
    head.forward = loss
    model.head_loss = loss  # type: ignore[assignment]
    return model
