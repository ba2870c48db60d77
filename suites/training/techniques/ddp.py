"""DistributedDataParallel (arXiv 2006.15704): every rank has the full model; gradients are averaged.

The model's only buffers are constants, which need no broadcast. DDP's reducer is written in C++ and does not
run on fake tensors: a dry run has the model without it, whose gradients stay from step to step as buckets do.

What it does not combine with follows from `ROLE` and `EXCLUDES` of either module, and from what `applies_to`
and `apply` refuse. `powersgd` needs it, and changes what it sends.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from harness.bounds import Bounds
from harness.instruments import torch_internals
from suites.training.contract import EXACT, Contract, Within
from suites.training.step import Level, Role, TrainingStep
from suites.training.workload import Resources

LEVEL = Level.PARALLELISM
ROLE = Role.PARALLELISM

BF16_REDUCTION = 1e-3
"""Share of the first loss: bf16 rounds a gradient by 2^-9 of it, and AdamW divides by its size."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Choose how gradients are reduced.

    `buckets`: the number of buckets of equal size; None: torch's, of 25 MiB each.
    `reduce_dtype`: the type in which gradients are sent, "fp32", or "bf16" by torch's bf16_compress_hook.
    `gradient_as_bucket_view`: gradients are views of the buckets; else each gradient is stored twice.
    """

    buckets: Annotated[int, Bounds(at_least=1)] | None = None
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    gradient_as_bucket_view: bool = False


def contract(settings: Settings) -> Contract:
    """Return `EXACT`, the mean over ranks in another order; or the tolerance of gradients sent in bf16."""
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
            "DDP: all parameters, gradients and states on every rank, and buckets of gradients",
        ),
    )


def wrap(settings: Settings, model: nn.Module, resources: Resources) -> nn.Module:
    """Return the model in DDP; a fake one as it is."""
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
        # DDP accepts this hook by name for NCCL alone, though gloo also sums bf16.
        wrapped.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))
    return wrapped


def reduce_with_the_last(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Return the context in which gradients are reduced with the last micro-batch of an update alone."""
    if last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()
