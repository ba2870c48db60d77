"""DistributedDataParallel (arXiv 2006.15704): each rank has everything; gradients are averaged in buckets.

The model's only buffers are constants, which need no broadcast. Its reducer is written in C++, which fake
tensors cannot run: a dry run takes the model as it is, whose gradients stay from step to step as the
buckets do.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from harness.instruments import torch_internals
from suites.training.contract import EXACT, Contract, Within
from suites.training.step import Level, TrainingStep
from suites.training.workload import Resources

LEVEL = Level.PARALLELISM
ROLE = "how ranks share the model"

BF16_REDUCTION = 1e-3
"""Of the first loss: a gradient is off by 2^-9 of each element, and AdamW divides by its own size."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How gradients are reduced.

    `buckets`: in how many parts of equal size; None: in torch's, of 25 MiB.
    `reduce_dtype`: "fp32", or "bf16" by torch's bf16_compress_hook.
    `gradient_as_bucket_view`: gradients are views into the buckets; else there are two of each.
    """

    buckets: int | None = None
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    gradient_as_bucket_view: bool = False


def contract(settings: Settings) -> Contract:
    """Return the contract: the mean over ranks in another order, rounded where it is sent in bf16."""
    return EXACT if settings.reduce_dtype == "fp32" else Within(BF16_REDUCTION)


def apply(step: TrainingStep, settings: Settings) -> TrainingStep:
    """Return the step as one of the workload's `dp_size` ranks takes it."""
    return replace(
        step,
        ranks=step.workload.dp_size,
        features=replace(step.features, sharding="ddp"),
        wraps=(*step.wraps, partial(wrap, settings)),
        reducing=reduce_with_the_last,
        keep_gradients=settings.gradient_as_bucket_view,
        notes=(
            *step.notes,
            "DDP: parameters, gradients and states whole on every rank, buckets of gradients",
        ),
    )


def wrap(settings: Settings, model: nn.Module, resources: Resources) -> nn.Module:
    """Put the model into DDP."""
    if torch_internals.is_fake(next(model.parameters())):
        return model
    bucket_MiB = None
    if settings.buckets is not None:
        bucket_MiB = sum(one.nbytes for one in model.parameters()) / settings.buckets / 2**20
    wrapped = DistributedDataParallel(
        model,
        bucket_cap_mb=bucket_MiB,
        broadcast_buffers=False,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
    )
    if settings.reduce_dtype == "bf16":
        # By its own name DDP takes this hook with NCCL alone, though gloo sums bf16 too.
        wrapped.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))
    return wrapped


def reduce_with_the_last(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Reduce gradients only with the last micro-batch of an update, as they are computed."""
    if last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()
