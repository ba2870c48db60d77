"""The host_optimizer suite: which implementation of AdamW updates parameters fastest on the host's CPU.

The baseline is torch.optim.AdamW's for-loop. It always runs on the CPU, where ZeRO-Offload leaves the update.
All variants of a workload update the same tensors, in turn; their drifting values do not change the work.
Cells of one workload are timed together: see harness/sweep/interleaved.py for the order of the
calls below. Parameters and moments are compared with AdamW in float64, written from its formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import psutil
import torch
from torch import Tensor, nn

from harness.instruments.memory.allocator import watch
from harness.instruments.timing.stopwatch import Stopwatch, stopwatch
from harness.records import Json, Origin, Reading, WrongResult
from suites.offload.workload import HostOptimizerWorkload
from suites.training.optimizers import ADAMW_FLOPS

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


@dataclass(frozen=True, slots=True)
class Subject:
    """How a variant updates. `count` makes the number of updates done (none) in the optimizer's own type."""

    workload: HostOptimizerWorkload
    seed: int
    make: MakeTorchOptimizer
    implementation: str
    count: Callable[[], Any] = lambda: torch.tensor(0.0)  # as torch's optimizers keep it


def torch_adamw(**how: Any) -> MakeTorchOptimizer:
    """Return a factory of torch.optim.AdamW with the named implementation."""
    return partial(torch.optim.AdamW, **ADAMW, **how)


def optimizer_of(subject: Subject, tensors: WorkloadTensors) -> torch.optim.Optimizer:
    """Return the variant's optimizer, which updates `tensors` in place and counts its updates from none."""
    optimizer = subject.make([one.parameter for one in tensors])
    for parameter, exp_avg, exp_avg_sq in tensors:
        optimizer.state[parameter] = {"step": subject.count(), "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    return optimizer


def made(workload: HostOptimizerWorkload, seed: int) -> WorkloadTensors:
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


_shared: WeakValueDictionary[tuple[HostOptimizerWorkload, int], WorkloadTensors] = WeakValueDictionary()


def shared(subject: Subject) -> WorkloadTensors:
    """Return the tensors of the workload, shared by all variants of a process; raises MemoryError.

    The location of tensors in memory makes identical code differ (docs/trust.md); five sets would not fit.
    """
    key = subject.workload, subject.seed
    tensors = _shared.get(key)
    if tensors is None:
        require_memory(subject.workload)
        tensors = _shared[key] = made(*key)
    return tensors


def require_memory(workload: HostOptimizerWorkload) -> None:
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

AWKWARD = HostOptimizerWorkload(3 * 10_007, 3)
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


def worst_error(optimizer: torch.optim.Optimizer, tensors: WorkloadTensors, where: str) -> float:
    """Return the worst error after `UPDATES` updates; raises WrongResult."""
    before = [wide(tensors, index) for index in range(len(tensors))]
    for _ in range(UPDATES):
        optimizer.step()
    worst = 0.0
    for index, (p_N, g_N, m_N, v_N) in enumerate(before):
        parameter, _, *moments = wide(tensors, index)
        groups = (parameter, *moments), adamw(p_N, g_N, m_N, v_N), (p_N, m_N, v_N)
        names = ("parameter", "first moment", "second moment")
        for name, ours, due, begun in zip(names, *groups, strict=True):
            worst = max(worst, error_of(ours, due, begun, f"{name} {index} of {where}"))
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


CPU = torch.device("cpu")

BYTES = 28
"""Least bytes moved per parameter: it and two moments read and written, its gradient read, each 4 B."""

COPIES = 9
"""Number of copies; each is a sample of the bandwidth."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; its tensors are made when they are first needed."""
    return Subject(
        HostOptimizerWorkload(**workload), seed, torch_adamw(foreach=False, fused=False), "for-loop"
    )


def prepare(subject: Subject) -> Session:
    """Create the tensors, which all variants of a process share; raises MemoryError where they do not fit."""
    tensors = shared(subject)
    optimizer = optimizer_of(subject, tensors)
    return Session(subject, tensors, optimizer, stopwatch(optimizer.step, CPU))


def check(session: Session) -> None:
    """Keep the worst error; raises `WrongResult` where one is above `TOLERANCE`, or not finite.

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
    session.max_error = max(worst, own)


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim about speed may name."""
    subject = session.subject
    return {
        "device": "cpu",
        "cpu": cpu_model(),
        "implementation": subject.implementation,
        "parameters": str(subject.workload.parameters),
        "tensors": str(subject.workload.tensors),
        "dtype": "fp32",
        "threads": str(torch.get_num_threads()),
    }


def cpu_model(file: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, as the kernel reports it."""
    lines = file.read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")


def read_once(session: Session) -> Iterator[Reading]:
    """Yield traffic and FLOP by formula, the error, the host's bandwidth, an update's faults and memory."""
    update, workload = session.optimizer.step, session.subject.workload
    yield Reading("bytes_moved", "B", BYTES * workload.parameters, Origin.CALCULATED)
    yield Reading("flops", "1", ADAMW_FLOPS * workload.parameters, Origin.CALCULATED)
    yield Reading("max_error", "1", session.max_error, Origin.MEASURED, "float64")
    yield from copy_bandwidth()
    yield Reading("page_faults", "1", page_faults(update), Origin.MEASURED)
    yield Reading("peak_memory", "B", peak_memory(update), Origin.MEASURED)


def copy_bandwidth() -> Iterator[Reading]:
    """Yield bytes read and written over the time of a copy into memory that is already mapped."""
    source = torch.ones(COPY_B, dtype=torch.uint8)
    copying = stopwatch(partial(torch.zeros_like(source).copy_, source), CPU)
    for _ in range(COPIES):
        for reading in copying.window():
            if reading.metric == "time":
                yield Reading("copy_bandwidth", "B/s", 2 * COPY_B / reading.value, Origin.MEASURED)


def page_faults(update: Callable[[], object]) -> int:
    """Yield the number of pages that the kernel has to map and clear in one update."""
    before = getrusage(RUSAGE_SELF).ru_minflt
    update()
    return getrusage(RUSAGE_SELF).ru_minflt - before


def peak_memory(update: Callable[[], object]) -> float:
    """Yield the most live bytes in one update beyond those before it, by the allocator's events."""
    with watch(CPU) as watched:
        watched.mark("update")
        update()
    return float(watched.peaks[0].live_B)


def sample(session: Session) -> Iterator[Reading]:
    """Time one window of updates: seconds per update, and the bandwidth reached with the least traffic."""
    for reading in session.stopwatch.window():
        yield reading
        if reading.metric == "time":
            moved_B = BYTES * session.subject.workload.parameters
            yield Reading("bandwidth", "B/s", moved_B / reading.value, Origin.MEASURED)
