"""The host_optimizer suite: which implementation of AdamW updates parameters fastest on the host's CPU.

The baseline is torch.optim.AdamW's for-loop. It always runs on the CPU, where ZeRO-Offload leaves the update.
All variants of a workload update the same tensors, in turn; their drifting values do not change the work.
Cells of one workload are timed together: see harness/sweep/interleaved.py for the order of the
calls below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import torch

from harness.instruments.memory.allocator import watch
from harness.instruments.timing.stopwatch import stopwatch
from harness.records import Json, Origin, Reading
from suites.host_optimizer import subject as correctness
from suites.host_optimizer.subject import COPY_B, Session, Subject, optimizer_of, shared, torch_adamw
from suites.host_optimizer.workload import Workload
from suites.training.optimizers import ADAMW_FLOPS

CPU = torch.device("cpu")

BYTES = 28
"""Least bytes moved per parameter: it and two moments read and written, its gradient read, each 4 B."""

COPIES = 9
"""Number of copies; each is a sample of the bandwidth."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; its tensors are made when they are first needed."""
    return Subject(Workload(**workload), seed, torch_adamw(foreach=False, fused=False), "for-loop")


def prepare(subject: Subject) -> Session:
    """Create the tensors, which all variants of a process share; raises MemoryError where they do not fit."""
    tensors = shared(subject)
    optimizer = optimizer_of(subject, tensors)
    return Session(subject, tensors, optimizer, stopwatch(optimizer.step, CPU))


def check(session: Session) -> None:
    """Compare the variant's updates with float64; raises `WrongResult`."""
    session.max_error = correctness.check(session)


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
    """Yield what is read once.

    This is traffic and FLOPs by formula, the check's error, the host's bandwidth, and the page faults and
    memory of one update.
    """
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
