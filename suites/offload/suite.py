"""The offload suite (the paper's Table II): what each strategy saves of device memory, and what it costs.

The baseline is torch's DDP. A workload either trains one model, or with a budget searches the largest that
trains in it (`suites.offload.largest`). Losses, bytes and searches are read once per cell. Steps are timed in
rounds, on fresh ranks in every turn. Without a GPU the hierarchy is emulated one tier down: private memory
represents the device, files mapped into memory the host, a disk NVMe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import torch

from harness.records import SET_UP_SAMPLES, Json, Note, Origin, Reading, Unavailable
from suites.offload.largest import DepthSearch, origin, sample_largest, trained_parameters
from suites.offload.managed import UNCOUNTED
from suites.offload.memory_estimates import estimates_B
from suites.offload.on_rank import COPIED_B, FOOTPRINT_STEPS
from suites.offload.ranks import Ranks
from suites.offload.subject import DISK, Subject, baseline, shared_techniques
from suites.offload.workload import Workload
from suites.training import correctness
from suites.training.techniques import Techniques

CHECKED_LAYERS = 2
"""Layers compared for a model that does not fit one plain process."""

UNTIMED, TIMED = 2, 3
"""Steps of a sample: states are created, caches and allocators fill; then those whose time counts."""

COMPARED_STEPS = {"cpu": 24, "cuda": 8}
"""First losses that are compared in a mixed-precision course, because rounding grows from step to step: in a
trial on an H100 fp32 was within 0.05 % of bf16 in these, and 0.5 % off after 13. In fp32 all are compared."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: DDP with AdamW, everything on the device."""
    given = Workload(**workload)
    if given.needs_gpu and not torch.cuda.is_available():
        raise Unavailable("this workload's size is chosen for a GPU, and there is none here")
    head_size = given.hidden_size // given.num_attention_heads
    if head_size % 2:
        raise Unavailable(f"rotary positions need an even head size, not {head_size}")
    folder = given.offload_dir
    if folder and not (Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise Unavailable(f"offload_dir={folder}: expected a folder that can be written")
    return baseline(given, seed)


def apply_techniques(subject: Subject, techniques: Techniques) -> Subject:
    """Return the subject with the techniques of an optimization's list."""
    return subject.with_techniques(techniques)


def bf16_FLOP(subject: Subject) -> float:
    """Return the FLOP of bf16 matrix products, 6 per parameter and token, in a sample.

    Or a share of what is read before the rounds, which is longer; see `harness.records.SET_UP_SAMPLES`.
    """
    workload = subject.workload
    if workload.precision != "bf16" or torch.cuda.is_available():
        return 0.0
    if workload.device_memory_budget_B is not None:
        trained = trained_parameters(subject) / SET_UP_SAMPLES
    else:
        trained = workload.shape.parameters * max(steps(subject) / SET_UP_SAMPLES, UNTIMED + TIMED)
    return 6.0 * trained * tokens_per_step(subject)


def steps(subject: Subject) -> int:
    """Return the steps before the rounds of a cell that trains one model, without the check of gradients.

    Plain PyTorch repeats the first steps of the course. The bytes are read in steps of their own.
    """
    course = subject.workload.loss_steps
    compared = min(course, COMPARED_STEPS[device().type]) if subject.step.contract.compared else 0
    return course + compared + (FOOTPRINT_STEPS if subject.managed is None else 0)


def tokens_per_step(subject: Subject) -> int:
    """Return the tokens of one update, of all ranks and micro-batches."""
    return subject.step.data_ranks * subject.step.workload.sequences * subject.workload.seq_len


@dataclass(slots=True)
class TrainingSession:
    """The cell's ranks, which train one model; `max_error` of a loss, once checked."""

    subject: Subject
    ranks: Ranks
    max_error: float | None = None


Session = TrainingSession | DepthSearch


def prepare(subject: Subject) -> Session:
    """Return what trains: ranks that start with their first call."""
    searches = subject.workload.device_memory_budget_B is not None
    ranks = Ranks(subject.workload, exact=searches)
    return DepthSearch(subject, ranks) if searches else TrainingSession(subject, ranks)


def check(session: Session) -> None:
    """Compare losses and gradients with plain PyTorch's; raises `WrongResult`.

    A model that one process could not hold is compared with few layers, managed memory by its course alone.
    """
    if isinstance(session, DepthSearch) or session.subject.managed is not None:
        return
    subject, ranks = session.subject, session.ranks
    if subject.workload.needs_gpu:
        subject = subject.at_depth(CHECKED_LAYERS)
    ranks.train(subject, "make", key="checked", step=subject.step.described)
    error = correctness.check_on_ranks(
        subject.step,
        lambda function, **given: ranks.train(subject, function, **given),
        "checked",
        shared_techniques(subject.workload),
        device(),
    )
    ranks.train(subject, "drop", key="checked")
    session.max_error = None if subject.workload.needs_gpu else error


def device() -> torch.device:
    """Return where plain PyTorch trains."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload, placement = session.subject.workload, session.subject.placement
    cuda = torch.cuda.is_available()
    return {
        "device": "cuda" if cuda else "cpu",
        "device_name": torch.cuda.get_device_name(0) if cuda else "CPU",
        "hierarchy": "real" if cuda else "emulated",
        "precision": workload.precision,
        "ranks": str(workload.dp_size),
        "engine": placement.engine,
        "stage": str(placement.stage),
        "optimizer_on": placement.optimizer,
        "parameters_on": placement.parameters,
        "activations": placement.activations,
    }


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Read one model's losses and bytes, or the largest model in a budget."""
    try:
        if isinstance(session, DepthSearch):
            yield from sample_largest(session)
        else:
            yield from read_step(session)
    finally:
        session.ranks.close()  # before others are timed


def timed(session: Session) -> bool:
    """Return whether steps are timed: not those of a search, nor of ranks that share a processor's core."""
    ranks = session.subject.workload.dp_size
    own = torch.cuda.is_available() or ranks <= len(os.sched_getaffinity(0))
    return own and isinstance(session, TrainingSession)


def sample(session: Session) -> Iterator[Reading | Note]:
    """Read the mean time of steps, of delayed ones where updates are.

    On fresh ranks, because an engine leaves threads and memory behind, which slow down what is trained next.
    """
    subject = session.subject
    try:
        course = session.ranks.call("train_steps", subject.immediate, steps=UNTIMED + TIMED)
    finally:
        session.ranks.close()  # before others are timed
    of_ranks = zip(*(one["seconds"][UNTIMED:] for one in course), strict=True)
    time_s = fmean(max(seconds) for seconds in of_ranks)
    yield Reading("time", "s", time_s, origin())
    yield Reading("throughput", "token/s", tokens_per_step(subject) / time_s, origin())
    if subject.managed is not None:
        yield from migrations(course[0]["counted"][UNTIMED:])


def read_step(session: TrainingSession) -> Iterator[Reading | Note]:
    """Read the losses of a course of steps, then bytes on each tier and between them.

    Raises `WrongResult` where a loss of the course is not plain PyTorch's, before anything is read.
    """
    subject = session.subject
    workload, placement = subject.workload, subject.placement
    course = session.ranks.call("train_steps", subject, steps=workload.loss_steps)
    losses = correctness.mean_over_ranks(course)
    check_course(session, losses)
    yield Reading("parameters", "1", workload.shape.parameters, Origin.CALCULATED)
    yield Reading("tokens_per_step", "1", tokens_per_step(subject), Origin.CALCULATED)
    if session.max_error is not None:
        yield Reading("max_error", "1", session.max_error, Origin.MEASURED, "plain PyTorch")
    yield Reading("loss", "1", losses[-1], Origin.MEASURED)
    yield from (Reading("loss_by_step", "1", loss, Origin.MEASURED) for loss in losses)
    if subject.managed is not None:
        return
    footprints = session.ranks.call("footprint", subject.immediate)
    for peaks_B in zip(*(one["peaks_B"] for one in footprints), strict=True):
        yield Reading("peak_memory", "B", max(peaks_B), origin(), "allocator")
    host_B = sum(one["host_B"] + one["locked_B"] for one in footprints)
    yield Reading("host_memory", "B", host_B, origin())
    yield Reading("build_memory", "B", max(one["build_B"] for one in footprints), origin(), "allocator")
    flows = FLOWS | (DISK_FLOWS if DISK in (placement.optimizer, placement.parameters) else {})
    for metric, names in flows.items():
        yield Reading(metric, "B", sum(one[name] for one in footprints for name in names), origin())
    copying_s = session.ranks.call("copying_s", subject)
    for way in ("up", "down"):
        slowest_s = max(one[way] for one in copying_s)
        yield Reading("copy_rate", "B/s", len(copying_s) * COPIED_B / slowest_s, origin(), way)
    moved_B = sum(one["up_B"] + one["down_B"] for one in footprints)
    yield Reading("moved_per_parameter", "B", moved_B / workload.shape.parameters, origin())
    if workload.dp_size > 1 and not torch.cuda.is_available():  # NCCL's are not all TCP's
        for sent_B in zip(*(one["sent_B"] for one in footprints), strict=True):
            per_parameter_B = max(sent_B) / workload.shape.parameters
            yield Reading("sent_per_parameter", "B", per_parameter_B, Origin.MEASURED)
    yield from estimated(subject, max(max(one["peaks_B"]) for one in footprints))


def check_course(session: TrainingSession, losses: Sequence[float]) -> None:
    """Compare the course's losses with plain PyTorch's; one that changes the mathematics must learn."""
    subject = session.subject
    step, workload = subject.step, subject.workload
    if not step.contract.compared:
        correctness.require_learning(losses)
        return
    if workload.needs_gpu:  # too large for one plain process
        return
    compared = losses[: COMPARED_STEPS[device().type]] if workload.precision == "bf16" else losses
    batch, micro_batches = step.workload.micro_batch_size, step.workload.gradient_accumulation_steps
    plain = losses_of_plain_pytorch(workload, subject.seed, len(compared), batch, micro_batches)
    error = correctness.compare(compared, plain, max(correctness.RANKS, step.contract.relative))
    session.max_error = max(error, session.max_error or 0.0)


@lru_cache(maxsize=1)
def losses_of_plain_pytorch(
    workload: Workload, seed: int, count: int, batch: int, micro_batches: int
) -> Sequence[float]:
    """Return the losses with which all variants of a workload that take such micro-batches are compared."""
    step = baseline(workload, seed).step
    batches = replace(step.workload, micro_batch_size=batch, gradient_accumulation_steps=micro_batches)
    taken = replace(step, workload=batches)
    return correctness.plain_losses(
        step, correctness.text_updates(taken, count), shared_techniques(workload), device()
    )


def migrations(counted: Sequence[Mapping[str, int]]) -> Iterator[Reading | Note]:
    """Read what managed memory moved per step. Its bytes on the device are what its bound leaves there."""
    for one in counted:
        if not one:
            yield Note(UNCOUNTED)
            return
        yield Reading("migrated", "B", one["migrated_B"], origin())
        yield Reading("major_faults", "1", one["major_faults"], origin())


FLOWS = {
    "moved_down": ("down_B",),
    "moved_up": ("up_B",),
    "moved": ("down_B", "up_B"),
}
"""Bytes per step, of all ranks."""

DISK_FLOWS = {"disk_memory": ("files_B",), "disk_read": ("read_B",), "disk_written": ("written_B",)}
"""Bytes of a variant's own files, and what disks read and wrote per step. Without such files the kernel's
account would count pages of the emulated host."""


def estimated(subject: Subject, peak_B: float) -> Iterator[Reading | Note]:
    """Read the estimates of the peak by formulas, estimators and fake tensors, and how far they are off."""
    for method, estimate_B, why in estimates_B(subject):
        if estimate_B is not None:
            made = Origin.SIMULATED if method == "fake_step" else Origin.CALCULATED
            yield Reading("peak_memory", "B", estimate_B, made, method)
            yield Reading("peak_error", "1", estimate_B / peak_B - 1, made, method)
        if why:
            yield Note(f"{method}: {why}")


def close(session: Session) -> None:
    """End the ranks."""
    session.ranks.close()
