"""DistributedDataParallel (arXiv 2006.15704): every rank has the full model; gradients are averaged.

The model's only buffers are constants, which need no broadcast. DDP's reducer is written in C++ and does not
run on fake tensors: a dry run has the model without it, and the bytes of its buckets, which are allocated
once. Where gradients are views of them, the gradients stay from step to step and stand for them. `powersgd`
needs it, and changes what it sends.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from harness.instruments import torch_internals
from suites.training.declared import DDPSettings
from suites.training.host_memory import Resources
from suites.training.step import EXACT, Contract, TrainingStep, Within

BF16_REDUCTION = 1e-3
"""Share of the first loss: bf16 rounds a gradient by 2^-9 of it, and AdamW divides by its size."""


NOTE = "DDP: all parameters, gradients and states on every rank, and buckets of gradients"
TWICE = "the formula has gradients once; DDP's buckets hold them once more"

FIRST_BUCKET_B = 1 << 20
"""torch.distributed's `_DEFAULT_FIRST_BUCKET_BYTES`. torch.compile cuts a graph where it expects a bucket to
be full, and refuses buckets below this. DDP has made its own by then, of the size that was chosen."""


def contract(settings: DDPSettings) -> Contract:
    """Return `EXACT`, the mean over ranks in another order; or the tolerance of gradients sent in bf16."""
    return EXACT if settings.reduce_dtype == "fp32" else Within(BF16_REDUCTION)


def apply(step: TrainingStep, settings: DDPSettings) -> TrainingStep:
    """Return the step as one of the workload's `dp_size` ranks takes it."""
    unlike = "" if settings.gradient_as_bucket_view else TWICE
    return replace(
        step,
        ranks=step.workload.dp_size,
        features=step.features.but(sharding="ddp", states=unlike),
        wraps=(*step.wraps, partial(wrap, settings, step.settings_of("powersgd") is not None)),
        reducing=reduce_with_the_last,
        keep_gradients=settings.gradient_as_bucket_view,
        notes=(*step.notes, NOTE),
    )


def wrap(settings: DDPSettings, hooked: bool, model: nn.Module, resources: Resources) -> nn.Module:
    """Return the model in DDP; a fake one as it is, with its buckets.

    `hooked`: another technique registers a communication hook, of which DDP takes one.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    if torch_internals.is_fake(trained[0]):
        if not settings.gradient_as_bucket_view:
            # One per parameter, so that a dry run finds layers alike; together they have the buckets' bytes.
            buckets = [torch.empty(one.numel(), dtype=one.dtype) for one in trained]
            vars(model)["communication_buffers"] = buckets
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
    wrapped.bucket_bytes_cap = max(wrapped.bucket_bytes_cap, FIRST_BUCKET_B)
    if settings.reduce_dtype == "bf16":
        # DDP accepts this hook by name for NCCL alone, though gloo also sums bf16.
        wrapped.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))
    elif not hooked and dist.get_backend() == "fake":
        # DDP's own all-reduce is in C++ and reads a result, which a fake group has in Python alone.
        wrapped.register_comm_hook(None, lambda state, bucket: allreduce_hook(state, bucket))
    return wrapped


def reduce_with_the_last(model: Any, last: bool) -> AbstractContextManager[Any]:
    """Return the context in which gradients are reduced with the last micro-batch of an update alone."""
    wrapped = not last and hasattr(model, "no_sync")  # a fake model is not
    context: AbstractContextManager[Any] = model.no_sync() if wrapped else nullcontext()
    return context
