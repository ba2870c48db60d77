"""The fsdp_versions suite: torch's FSDP1 against FSDP2, in time, in memory and in what the allocator does.

The baseline is FSDP1. Variants share ranks and are timed in turn. Without GPUs ranks meet over gloo, and what
is reserved is simulated from the calls. A workload that is `simulated` is a dry run of one rank on CUDA.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import torch

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.records import Json, Note, Origin, Reading
from suites.profiling import allocator_events
from suites.profiling.allocator_events import reserved_by_step
from suites.profiling.workload import FsdpVersionsWorkload
from suites.training import correctness
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.shared_trainers import SharedTrainers, backend_of, shared
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, build_step, strategy_of
from suites.training.techniques import apply_techniques as with_techniques
from suites.training.workload import refuse_odd_heads

TIMEOUT_S = 300.0


class ShardingRanks(SharedTrainers):
    """A pool, and the variants that have trainers on it."""

    def __init__(self, ranks: int) -> None:
        self.backend = backend_of(ranks)
        places = [
            RankLocation((), {"OMP_NUM_THREADS": "1", "LOCAL_RANK": str(rank)}) for rank in range(ranks)
        ]
        super().__init__(RankPool(places, "127.0.0.1", self.backend, TIMEOUT_S), allocator_events)
        self.call("use_ring")


def shared_techniques(workload: FsdpVersionsWorkload) -> Techniques:
    """Return the techniques that plain PyTorch has too where a variant is compared with it."""
    chosen: list[str | dict[str, dict[str, str]]] = [{"attention": {"kernel": "flash"}}]
    if workload.precision == "bf16":
        chosen.append("mixed_precision")
    if workload.checkpointing:
        chosen.append("activation_checkpointing")
    return chosen


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a training step under FSDP1 or FSDP2."""

    workload: FsdpVersionsWorkload
    step: TrainingStep

    @property
    def version(self) -> str:
        """Return "fsdp1" or "fsdp2"."""
        return str(strategy_of(self.step))


KEYS = itertools.count()

SETTLING, STEADY = 2, 4
"""Updates before the allocator is watched, as states are made in the first; and those that are."""

UPDATES = 8  # updates of a sample: their mean is a step's time, and their spread that of steps

DELAYS = (1, 2)
"""Most allocations for which releases of FSDP1's gathered parameters are late; see `DelayedAllocator`."""

SEEDS, REPEATED = 5, 4  # draws of the delays, and steps in each

AT_ONCE = "released at once"


def build(workload: Json, seed: int) -> Subject:
    """Return the step under FSDP1, whose units are the layers."""
    given = FsdpVersionsWorkload(**workload)
    refuse_odd_heads(given)
    return Subject(given, build_step(given.training, [*shared_techniques(given), "fsdp1"], seed))


def apply_techniques(subject: Subject, techniques: Techniques) -> Subject:
    """Return the subject with the techniques of an optimization's list; raises `Unavailable`."""
    return replace(subject, step=with_techniques(subject.step, techniques))


def bf16_FLOP(subject: Subject) -> float:
    """Return the FLOP of bf16 products in one sample: 6 per parameter and token; none of a dry run."""
    if subject.workload.precision == "fp32" or subject.workload.simulated:
        return 0.0
    return 6.0 * subject.workload.shape.parameters * UPDATES * tokens_per_step(subject)


@dataclass(slots=True)
class Session:
    """A variant's trainers on the ranks that all variants share; `ranks` is None for a dry run."""

    subject: Subject
    ranks: ShardingRanks | None
    key: str
    max_error: float | None = None


def prepare(subject: Subject) -> Session:
    """Start the ranks if no variant has, and the variant's trainers on them."""
    key = f"{subject.version} {next(KEYS)}"
    if subject.workload.simulated:
        return Session(subject, None, key)
    ranks = shared(ShardingRanks, subject.workload.dp_size)
    ranks.enter(key, subject.step)
    return Session(subject, ranks, key)


def check(session: Session) -> None:
    """Compare losses and gradients with plain PyTorch's, a dry run's at a small size; see `WrongResult`."""
    subject = session.subject
    if session.ranks is None:
        correctness.check(subject.step)
        return
    shared_by_both = shared_techniques(subject.workload)
    device = torch.device("cuda" if session.ranks.backend == "nccl" else "cpu")
    session.max_error = correctness.check_on_ranks(
        subject.step, session.ranks.call, session.key, shared_by_both, device
    )


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload, ranks = session.subject.workload, session.ranks
    real = ranks is not None and ranks.backend == "nccl"
    return {
        "device": "cuda" if real or workload.simulated else "cpu",
        "device_name": torch.cuda.get_device_name(0) if real else "none",
        "backend": "simulated" if ranks is None else ranks.backend,
        "reduce_scatter": "ring" if ranks is not None and not real else "NCCL's",
        "version": session.subject.version,
        "precision": session.subject.step.features.precision,
        "ranks": str(workload.dp_size),
        "parameters": str(workload.shape.parameters),
    }


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Read what the allocator does in each of a few steps, of rank 0, or the dry run."""
    subject = session.subject
    yield Reading("parameters", "1", subject.workload.shape.parameters, Origin.CALCULATED)
    if session.ranks is None:
        yield from dry(subject)
        return
    yield Reading("tokens_per_step", "1", tokens_per_step(subject), Origin.CALCULATED)
    if session.max_error is not None:
        yield Reading("max_error", "1", session.max_error, Origin.MEASURED, "plain PyTorch")
    steps = session.ranks.call(
        "allocator_steps", step=subject.step.described, settling=SETTLING, steady=STEADY
    )[0]
    yield from of_steps(steps, session.ranks.backend == "nccl")


def of_steps(steps: list[dict[str, float | None]], cuda: bool) -> Iterator[Reading]:
    """Return the readings of each step; of what is reserved, the origin depends on the device."""
    reserved = (Origin.MEASURED, "allocator") if cuda else (Origin.SIMULATED, "replayed")
    for one in steps:
        for metric in ("allocations", "releases", "same_order"):
            yield Reading(metric, "1", float(one[metric] or 0), Origin.MEASURED)
        yield Reading("peak_memory", "B", float(one["live_peak_B"] or 0), Origin.MEASURED, "allocator")
        yield Reading("reserved_memory", "B", float(one["reserved_peak_B"] or 0), *reserved)
        yield Reading("grown_memory", "B", float(one["grown_B"] or 0), Origin.MEASURED)
        if one["held_s"] is not None:
            yield Reading("held_after_use", "s", one["held_s"], Origin.MEASURED)
        if one["held_operations"] is not None:
            yield Reading("operations_after_use", "1", one["held_operations"], Origin.MEASURED)
        if "retries" in one:
            yield Reading("retries", "1", float(one["retries"] or 0), Origin.MEASURED)


def dry(subject: Subject) -> Iterator[Reading | Note]:
    """Return the peak of a dry run on CUDA, and what is reserved; under FSDP1 by how late releases are."""
    run = dry_run(subject.step, Device("cuda"))
    yield Reading("peak_memory", "B", run.peak_B, Origin.SIMULATED, "fake_step")
    for kind, size_B in run.by_kind_B.items():
        yield Reading(f"peak_memory/{kind}", "B", size_B, Origin.SIMULATED, "fake_step")
    assert run.timeline is not None  # kept for one rank
    assert run.reserved_B is not None  # on CUDA
    own = run.timeline.events[run.timeline.since :]
    yield Reading("allocations", "1", sum(one.delta_B > 0 for one in own), Origin.SIMULATED, "fake_step")
    yield Reading("releases", "1", sum(one.delta_B < 0 for one in own), Origin.SIMULATED, "fake_step")
    at_once_B = run.reserved_B  # FSDP2's streams are part of the dry run
    if subject.version == "fsdp1":
        at_once_B = reserved_by_step(run.timeline, 0, 1, 0)[0]
        for most, seed in itertools.product(DELAYS, range(SEEDS)):
            reserved_B = reserved_by_step(run.timeline, most, REPEATED, seed)[-1]
            yield Reading("reserved_memory", "B", reserved_B, Origin.SIMULATED, f"late by up to {most}")
    yield Reading("reserved_memory", "B", at_once_B, Origin.SIMULATED, AT_ONCE)
    yield Note(f"fake_step: the peak is in {run.place.phase!r}, at {run.place.operation}")


def tokens_per_step(subject: Subject) -> int:
    """Return the tokens that all ranks train on in one step."""
    workload = subject.workload
    return workload.dp_size * workload.micro_batch_size * workload.seq_len


def timed(session: Session) -> bool:
    """Return whether steps are timed: not of a dry run, nor of ranks that share a processor's core."""
    if session.ranks is None:
        return False
    return session.ranks.backend == "nccl" or len(session.ranks.pool) <= len(os.sched_getaffinity(0))


def sample(session: Session) -> Iterator[Reading]:
    """Read the mean time of a few steps, each that of the slowest rank, and the steps' spread."""
    ranks = session.ranks
    assert ranks is not None  # only what is `timed` is sampled
    answers = ranks.call("updates", key=session.key, count=UPDATES)
    slowest_s = [max(times) for times in zip(*(one["seconds"] for one in answers), strict=True)]
    yield Reading("time", "s", fmean(slowest_s), Origin.MEASURED)
    yield Reading("step_time_variation", "1", stdev(slowest_s) / fmean(slowest_s), Origin.MEASURED)
    for metric, unit, value, method in ranks.call("clocks")[0]:
        yield Reading(metric, unit, value, Origin.MEASURED, method)


def close(session: Session) -> None:
    """Release the variant's trainers; with the last of them the ranks end."""
    if session.ranks is not None:
        session.ranks.leave(session.key)
