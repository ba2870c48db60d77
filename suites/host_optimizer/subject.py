"""The host_optimizer suite's types: the tensors that all variants update, and how a variant updates them.

The correctness check: parameters and moments against AdamW in float64, written from its formula.

Part of `check`. An error is |ours - float64| over the largest movement of the same tensor: an update moves a
parameter by a thousandth of its size, so an error relative to its size would accept one that never moved.
"""

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
from harness.records import WrongResult
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


UPDATES = 3
"""Number of updates; several, so that wrongly kept moments show."""

TOLERANCE = 1e-3
"""Allowed error, relative to the largest movement. In three updates a parameter of 4 to 8, rounded twice per
update to half of 2^-21, may be off by 1.4e-6, and the largest moves by about 3e-3: 5e-4. Moments are closer:
1 - 0.999 taken in fp32 is off by 1.3e-5 of itself."""

AWKWARD = Workload(3 * 10_007, 3)
"""Length of three vectors: a prime, so a multiple of no vector width and no number of threads."""

LOOKED_AT = 2**20
"""Number of elements of a tensor that are compared: all, or this many from its first to its last."""


def adamw(p_N: Tensor, g_N: Tensor, m_N: Tensor, v_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return parameters and moments after `UPDATES` updates with the same gradient, counted from the first.

    arXiv 1711.05101, Algorithm 2, its decay times the learning rate as torch.optim.AdamW has it.
    """
    lr, (beta1, beta2), eps, decay = ADAMW.values()
    for t in range(1, UPDATES + 1):
        m_N = beta1 * m_N + (1 - beta1) * g_N
        v_N = beta2 * v_N + (1 - beta2) * g_N**2
        direction_N = m_N / (1 - beta1**t) / ((v_N / (1 - beta2**t)).sqrt() + eps)
        p_N = p_N - lr * (direction_N + decay * p_N)
    return p_N, m_N, v_N


def check(session: Session) -> float:
    """Return the worst error; raise WrongResult where one is above `TOLERANCE`, or not finite.

    Checks awkward lengths, and the tensors that are timed, with the optimizer that is timed. The latter have
    moments of the variants before it; they start from zero again, since settled moments move too little.
    """
    subject = session.subject
    for _, exp_avg, exp_avg_sq in session.tensors:
        exp_avg.zero_()
        exp_avg_sq.zero_()
    awkward = made(AWKWARD, subject.seed)
    worst = worst_error(optimizer_of(subject, awkward), awkward, "three vectors of 10,007")
    own = worst_error(session.optimizer, session.tensors, f"{subject.workload.parameters:,} parameters")
    return max(worst, own)


def worst_error(optimizer: torch.optim.Optimizer, tensors: WorkloadTensors, where: str) -> float:
    """Return the worst error after `UPDATES` updates; raises WrongResult."""
    before = [wide(tensors, index) for index in range(len(tensors))]
    for _ in range(UPDATES):
        optimizer.step()
    worst = 0.0
    for index, (p_N, g_N, m_N, v_N) in enumerate(before):
        expected = adamw(p_N, g_N, m_N, v_N)
        after = wide(tensors, index)
        ours = after[0], after[2], after[3]
        names = ("parameter", "first moment", "second moment")
        for name, one, expected_one, initial in zip(names, ours, expected, (p_N, m_N, v_N), strict=True):
            worst = max(worst, error_of(one, expected_one, initial, f"{name} {index} of {where}"))
    return worst


def wide(tensors: WorkloadTensors, index: int) -> list[Tensor]:
    """Return parameter, gradient and moments of one tensor in float64, at the compared elements."""
    parameter, exp_avg, exp_avg_sq = tensors[index]
    size = parameter.numel()
    places = torch.linspace(0, size - 1, min(size, LOOKED_AT), dtype=torch.float64).round().long()
    assert parameter.grad is not None
    return [one.detach()[places].double() for one in (parameter, parameter.grad, exp_avg, exp_avg_sq)]


def error_of(ours_N: Tensor, due_N: Tensor, begun_N: Tensor, what: str) -> float:
    """Return the error of one tensor; raises WrongResult with the worst element's index."""
    off_N, moved = (ours_N - due_N).abs(), float((due_N - begun_N).abs().max())
    at = int(off_N.nan_to_num(nan=torch.inf).argmax())
    error = float(off_N[at]) / moved
    if not error <= TOLERANCE:
        raise WrongResult(
            f"{what} is {float(ours_N[at]):.8g} and in float64 {float(due_N[at]):.8g} after {UPDATES} "
            f"updates: off by {error:.1e} of the largest movement, allowed {TOLERANCE:.0e}"
        )
    return error
