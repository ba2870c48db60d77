"""How the output layer and the loss are computed: how many logits exist at once, in which type, for how long.

Logits take tokens x vocab_size elements, often more than any other tensor of a step: bf16 logits, their fp32
copy, its log-softmax and the gradients of each. A model may scale or cap what its output layer returns.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from harness.records import Unavailable
from suites.training.declared import LossSettings
from suites.training.host_memory import Resources
from suites.training.models.head_loss import UNCHANGED, HeadLoss
from suites.training.step import EXACT, Contract, TrainingStep, Within
from suites.training.workload import Workload

IN_BF16 = 1e-2
"""Share of the first loss: a loss in bf16 is rounded by 2^-9 of it, and so is each of its terms."""


def contract(settings: LossSettings) -> Contract:
    """Return `EXACT`, the same sums in another order; or the tolerance of a loss in bf16."""
    return EXACT if settings.dtype is None else Within(IN_BF16)


def applies_to(workload: Workload, settings: LossSettings) -> str | None:
    """Return why a sequence cannot be taken in such chunks; None where it can."""
    if settings.chunks > workload.seq_len:
        return f"chunks={settings.chunks}: allowed are 1 to seq_len={workload.seq_len}"
    if settings.fused and settings != LossSettings(fused=True):
        return "fused chooses chunks and types itself; leave out the other settings"
    if settings.compiled and (
        settings.dtype or settings.chunked == "in_place" or settings.keep_logits == "fp32"
    ):
        return "compiled widens logits in registers; leave out dtype, keep_logits=fp32 and chunked=in_place"
    if settings.chunked == "recompute" and settings.keep_logits is not None:
        return "chunked=recompute keeps no logits; use chunked=loss or output to keep them"
    if settings.keep_logits == "fp32" and settings.dtype is not None:
        return f"keep_logits=fp32 keeps what the loss reads, and dtype={settings.dtype} reads no fp32 logits"
    return None


def apply(step: TrainingStep, settings: LossSettings) -> TrainingStep:
    """Return the step with that loss."""
    if settings.fused and torch.cuda.is_available() and importlib.util.find_spec("liger_kernel") is None:
        raise Unavailable("loss: fused needs the extra liger: pip install 'throughput-harness[liger]'")
    features = step.features.but(activations="the formula has the logits of all tokens at once")
    return replace(step, wraps=(*step.wraps, partial(put_into_head, settings)), features=features)


def put_into_head(settings: LossSettings, model: nn.Module, resources: Resources) -> nn.Module:
    """Let the model's output layer return the loss in place of logits.

    Raises `Unavailable` for a model of which the output layer is not known.
    """
    find = getattr(model, "output_layer", None)
    if find is None:
        raise Unavailable(f"loss: {type(model).__name__} has no output_layer() that returns its output layer")
    head: nn.Module = find()
    chunked = "fused" if settings.fused else settings.chunked
    narrow = torch.bfloat16 if settings.dtype == "bf16" else None
    change = getattr(model, "logit_change", UNCHANGED)
    loss = HeadLoss(head, chunked, settings.chunks, narrow, settings.keep_logits, change, settings.compiled)
    head.forward = loss
    model.head_loss = loss  # type: ignore[assignment]
    return model
