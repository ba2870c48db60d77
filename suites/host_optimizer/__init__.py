"""The host_optimizer suite: which implementation of AdamW updates parameters fastest on the host's CPU.

The baseline is torch.optim.AdamW's for-loop. Always on the CPU, for it is the update that ZeRO-Offload leaves
there. All variants of a workload update the same tensors, in turn; that their values drift does not change
the
work. Cells of one workload are timed together: see harness/interleaved_group.py for the order of the calls
below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch

from harness.instruments.memory.allocator import watch
from harness.instruments.timing.stopwatch import stopwatch
from harness.records import Json, Origin, Reading
from suites.host_optimizer import correctness
from suites.host_optimizer.subject import COPY_B, Subject, Workload, torch_adamw

CPU = torch.device("cpu")

BYTES = 28
"""Moved for one parameter at least: it and two moments read and written, its gradient read, each 4 B."""

FLOPS = 14
"""For one parameter: first moment 3, second 4, root, quotient and sum 3, step 2, decay 2. Both corrections
are of scalars."""

COPIES = 9
"""Of which each is a sample of the bandwidth."""


def build(workload: Json, seed: int) -> Subject:
    """The baseline; its tensors are made when they are first asked for."""
    return Subject(Workload(**workload), seed, torch_adamw(foreach=False, fused=False), "for-loop")


def check(subject: Subject, module: Any) -> None:
    """Hold the variant's updates against float64's; raises `WrongResult`, MemoryError where they do not
    fit."""
    correctness.check(subject)


def conditions(subject: Subject) -> Mapping[str, str]:
    """What a claim about speed may ask after."""
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
    """As the kernel names it."""
    lines = file.read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")


def prepare(subject: Subject) -> Iterator[Reading]:
    """What is read once: traffic and arithmetic by formula, the check's error, the host's bandwidth, what
    one update takes beside its time; the stopwatch for the rounds is made."""
    update = subject.held["optimizer"].step
    yield Reading("bytes_moved", "B", BYTES * subject.workload.parameters, Origin.CALCULATED)
    yield Reading("flops", "1", FLOPS * subject.workload.parameters, Origin.CALCULATED)
    yield Reading("max_error", "1", subject.held["max_error"], Origin.MEASURED, "float64")
    yield from copy_bandwidth()
    yield Reading("page_faults", "1", page_faults(update), Origin.MEASURED)
    yield Reading("peak_memory", "B", peak_memory(update), Origin.MEASURED)
    subject.held["stopwatch"] = stopwatch(update, CPU)


def copy_bandwidth() -> Iterator[Reading]:
    """Bytes read and written, over the time of a copy into memory that is there already."""
    source = torch.ones(COPY_B, dtype=torch.uint8)
    copying = stopwatch(partial(torch.zeros_like(source).copy_, source), CPU)
    for _ in range(COPIES):
        for reading in copying.window():
            if reading.metric == "time":
                yield Reading("copy_bandwidth", "B/s", 2 * COPY_B / reading.value, Origin.MEASURED)


def page_faults(update: Callable[[], object]) -> int:
    """Pages that the kernel has to find, and to clear, in one update."""
    before = getrusage(RUSAGE_SELF).ru_minflt
    update()
    return getrusage(RUSAGE_SELF).ru_minflt - before


def peak_memory(update: Callable[[], object]) -> float:
    """Most live bytes in one update beyond those before it, by the allocator's account."""
    with watch(CPU) as watched:
        watched.mark("update")
        update()
    return float(watched.peaks[0].live_B)


def timed(subject: Subject) -> bool:
    """Whatever can be checked here can be timed."""
    return True


def sample(subject: Subject) -> Iterator[Reading]:
    """One window of updates: seconds an update, and the bandwidth that it reaches with the least traffic."""
    for reading in subject.held["stopwatch"].window():
        yield reading
        if reading.metric == "time":
            moved_B = BYTES * subject.workload.parameters
            yield Reading("bandwidth", "B/s", moved_B / reading.value, Origin.MEASURED)


def close(subject: Subject) -> None:
    """Let go of the tensors, which go with the last variant that holds them."""
    subject.held.clear()
