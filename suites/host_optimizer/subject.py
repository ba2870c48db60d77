"""The host_optimizer suite's types: the tensors that all variants update, and how a variant updates them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import psutil
import torch
from torch import Tensor, nn

from harness.instruments.timing.stopwatch import Stopwatch
from suites.host_optimizer.workload import Workload

ADAMW: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
"""Settings of every variant, so that the work is equal: torch.optim.AdamW's defaults."""

COPY_B = 2**28
"""Size of the copy that measures the host's bandwidth: 256 MiB, beyond the caches of most hosts."""

HELD_B = 24
"""Bytes per parameter: itself, its gradient and two moments, 4 B each, and at most two temporaries, because
the for-loop keeps the root of the second moment and its quotient at once."""


class Updated(NamedTuple):
    """One tensor (N,) with its gradient in `.grad`, and its first and second moment, fp32."""

    parameter: nn.Parameter
    exp_avg: Tensor
    exp_avg_sq: Tensor


class WorkloadTensors(list[Updated]):
    """All tensors of a workload; a class, so that it can be referred to weakly."""


MakeTorchOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def in_a_tensor() -> Tensor:
    """Return a count of no updates yet, as torch's optimizers keep it."""
    return torch.tensor(0.0)


@dataclass(frozen=True, slots=True)
class Subject:
    """How a variant updates. `count` makes the number of updates done (none) in the optimizer's own type."""

    workload: Workload
    seed: int
    make: MakeTorchOptimizer
    implementation: str
    count: Callable[[], Any] = in_a_tensor


def torch_adamw(**how: Any) -> MakeTorchOptimizer:
    """Return a factory of torch.optim.AdamW with the named implementation."""
    return partial(torch.optim.AdamW, **ADAMW, **how)


def optimizer_of(subject: Subject, tensors: WorkloadTensors) -> torch.optim.Optimizer:
    """Return the variant's optimizer, which updates `tensors` in place and counts its updates from none."""
    optimizer = subject.make([one.parameter for one in tensors])
    for parameter, exp_avg, exp_avg_sq in tensors:
        optimizer.state[parameter] = {"step": subject.count(), "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    return optimizer


def made(workload: Workload, seed: int) -> WorkloadTensors:
    """Return normal parameters and gradients and zero moments; the same for the same seed."""
    generator, size = torch.Generator().manual_seed(seed), workload.parameters // workload.tensors
    tensors = WorkloadTensors()
    for _ in range(workload.tensors):
        parameter = nn.Parameter(torch.randn(size, generator=generator))
        parameter.grad = torch.randn(size, generator=generator)
        tensors.append(Updated(parameter, torch.zeros(size), torch.zeros(size)))
    return tensors


@dataclass(slots=True)
class Session:
    """One variant at work on the tensors of its workload. `check` leaves its worst error."""

    subject: Subject
    tensors: WorkloadTensors
    optimizer: torch.optim.Optimizer
    stopwatch: Stopwatch
    max_error: float = math.nan


_shared: WeakValueDictionary[tuple[Workload, int], WorkloadTensors] = WeakValueDictionary()


def shared(subject: Subject) -> WorkloadTensors:
    """Return the tensors of the workload, shared by all variants of a process as long as one of them is open.

    The location of tensors in memory makes identical code differ (docs/trust.md), and five sets would not
    fit. Raises MemoryError where even one does not.
    """
    key = subject.workload, subject.seed
    tensors = _shared.get(key)
    if tensors is None:
        require_memory(subject.workload)
        tensors = _shared[key] = made(*key)
    return tensors


def require_memory(workload: Workload) -> None:
    """Raise MemoryError before an allocation that would take all of the machine's memory."""
    need_B = HELD_B * workload.parameters + 2 * COPY_B
    free_B = psutil.virtual_memory().available
    if need_B > free_B:
        raise MemoryError(
            f"{workload.parameters:,} parameters with gradients, states and temporaries take "
            f"{need_B / 1e9:.1f} GB, and {free_B / 1e9:.1f} GB are free"
        )
