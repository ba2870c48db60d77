"""The clock_speed suite: what a slow rank and unsteady speeds cost in synchronous training.

The baseline is DDP with every rank at full speed. Speeds are imposed on the ranks of a CPU by a quota of its
time, so every time is emulated: nothing is said about why a GPU's clock changes. Each sample runs a few
updates at full speed, then some at the variant's speeds.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from harness.instruments.control_group import LEAST_QUOTA_S
from harness.records import Json, Origin, Reading, Unavailable
from suites.clock_speed.shared_ranks import Instants, PacedRanks, shared
from suites.clock_speed.speed_model import (
    SHARED,
    Dwell,
    MeanParts,
    Speeds,
    Subject,
    baseline,
    dwells,
    loss_as_waiting,
    mean_parts,
    slowdowns,
    step_ends_s,
)
from suites.clock_speed.workload import Workload
from suites.training import correctness

KEYS = itertools.count()
SEEDS = itertools.count()

WARM_UP = 3
"""Updates at full speed when a trainer is made: DDP arranges its buckets anew after the first."""


def build(workload: Json, seed: int) -> Subject:
    """Return the step with every rank at full speed."""
    given = Workload(**workload)
    head_size = given.hidden_size // given.num_attention_heads
    if head_size % 2:
        raise Unavailable(f"rotary positions need an even head size, not {head_size}")
    validate_quota(given)
    return baseline(given, seed)


def validate_quota(workload: Workload) -> None:
    """Raise `Unavailable` where a slow rank's quota is below what the kernel allows."""
    least_s = workload.core_share * workload.slow * workload.quota_period_s
    if least_s < LEAST_QUOTA_S:
        raise Unavailable(
            f"core_share × slow × quota_period_s = {least_s:g} s: expected at least {LEAST_QUOTA_S:g} s, the "
            "kernel's shortest quota"
        )


@dataclass(slots=True)
class Session:
    """A variant's trainers on the ranks that all variants share."""

    subject: Subject
    ranks: PacedRanks
    key: str
    max_error: float | None = None


def prepare(subject: Subject) -> Session:
    """Start the ranks if no variant has, and the variant's trainers on them."""
    workload, cores = subject.workload, len(os.sched_getaffinity(0))
    if workload.dp_size * workload.core_share > 0.9 * cores:
        raise Unavailable(
            f"{workload.dp_size} ranks with {workload.core_share:g} of a core each leave too little of "
            f"{cores} cores, so that speeds would not be those imposed; set core_share lower"
        )
    session = Session(subject, shared(workload), f"{subject.speeds.pattern} {next(KEYS)}")
    try:
        session.ranks.variants.add(session.key)
        session.ranks.call("make", key=session.key, step=subject.step.described)
        session.ranks.call("watch_arrivals", key=session.key)
    except BaseException:
        close(session)
        raise
    return session


def check(session: Session) -> None:
    """Compare losses and gradients with plain PyTorch's; raises `WrongResult`."""
    call = session.ranks.call
    session.max_error = correctness.check_on_ranks(session.subject.step, call, session.key, SHARED)
    call("instants", key=session.key, count=WARM_UP)


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload, speeds = session.subject.workload, session.subject.speeds
    return {
        "device": "cpu",
        "device_name": "none",
        "speed": "imposed by a CPU quota",
        "pattern": speeds.pattern,
        "dwell_s": f"{speeds.dwell_s:g}",
        "slow": f"{workload.slow:g}",
        "ranks": str(workload.dp_size),
        "strategy": "ddp",
    }


def read_once(session: Session) -> Iterator[Reading]:
    """Read what is known beforehand: the closed formulas, and the check's error."""
    workload, speeds = session.subject.workload, session.subject.speeds
    yield Reading("parameters", "1", workload.shape.parameters, Origin.CALCULATED)
    if session.max_error is not None:
        yield Reading("max_error", "1", session.max_error, Origin.MEASURED, "plain PyTorch")
    for method, factor in slowdowns(speeds, workload.dp_size, workload.slow).items():
        yield Reading("slowdown", "1", factor, Origin.CALCULATED, method)
    if speeds.pattern == "one_slow":
        share = loss_as_waiting(workload.dp_size)
        yield Reading("loss_as_waiting", "1", share, Origin.CALCULATED, "closed formula")


def sample(session: Session) -> Iterator[Reading]:
    """Read a step's time at the imposed speeds, its parts, and the time that the model predicts."""
    workload, speeds, ranks = session.subject.workload, session.subject.speeds, session.ranks
    full = dwells(Speeds(), workload.dp_size, workload.slow, 0)
    reference, _ = ranks.paced(session.key, workload.reference_updates, full, 0.0)
    own = dwells(speeds, workload.dp_size, workload.slow, next(SEEDS))
    instants, imposed = ranks.paced(session.key, workload.updates, own, speeds.dwell_s)
    before, parts = mean_parts(reference), mean_parts(instants)
    yield Reading("time", "s", parts.step_s, Origin.EMULATED, "quota")
    yield Reading("slowdown", "1", parts.step_s / before.step_s, Origin.EMULATED, "quota")
    yield from of_parts(parts, before, speeds)
    predicted_s = predicted(instants, imposed, before)
    yield Reading("time", "s", predicted_s, Origin.SIMULATED, "model")
    yield Reading("model_error", "1", predicted_s / parts.step_s - 1, Origin.SIMULATED, "model")


def of_parts(parts: MeanParts, before: MeanParts, speeds: Speeds) -> Iterator[Reading]:
    """Return a step's parts, the share of a core while computing, and what of a loss is waiting."""
    first, others = parts.ranks[0], parts.ranks[1:]
    for name in ("computing_s", "waiting_s", "communication_s"):
        metric = name.removesuffix("_s")
        yield Reading(metric, "s", getattr(first, name), Origin.EMULATED, "rank 0")
        yield Reading(
            metric, "s", fmean(getattr(one, name) for one in others), Origin.EMULATED, "other ranks"
        )
    for method, some in (("rank 0", [first]), ("other ranks", others)):
        share = sum(one.computing_cpu_s for one in some) / sum(one.computing_s for one in some)
        yield Reading("core_share", "1", share, Origin.MEASURED, method)
    lost_s = parts.step_s - before.step_s
    if speeds.pattern == "one_slow":
        waited_s = parts.waiting_s - before.waiting_s
        yield Reading("loss_as_waiting", "1", waited_s / lost_s, Origin.EMULATED, "quota")


def predicted(instants: Instants, imposed: list[Dwell], before: MeanParts) -> float:
    """Return the mean step that the imposed speeds give, with the work and communication at full speed.

    Steps begin when gradients were averaged for the first time, and are as many as those that were timed.
    """
    begin_s = max(one["averaged"][0] for one in instants)
    count = len(instants[0]["averaged"]) - 1
    work_s = [one.computing_s for one in before.ranks]
    ends_s = step_ends_s(imposed, begin_s, work_s, before.communication_s, count)
    return (ends_s[-1] - begin_s) / count


def close(session: Session) -> None:
    """Release the variant's trainers; with the last of them the ranks end."""
    session.ranks.leave(session.key)
