"""Take recordings of steps with and without what is injected, and read what they show.

How much of what is injected takes effect is calibrated beforehand. A trace of a run elsewhere is read and
broken down as far as it allows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from harness.instruments.control_group import CpuQuota
from harness.instruments.timing.device_telemetry import telemetry_readings
from harness.instruments.traces.breakdown import Breakdown, breakdown
from harness.instruments.traces.causes import advice, causes, sentence
from harness.instruments.traces.kineto import read_traces
from harness.instruments.traces.segments import State
from harness.records import Note, Origin, Reading, Unavailable
from suites.profiling.diagnosis import ALL_RANKS, Recording, by_step_s, column, diagnose, middle, step_times_s
from suites.profiling.ranks import RankRecord, RecordedRanks, slowed
from suites.profiling.recorder import Injection, Subject
from suites.profiling.workload import Workload

SPIN = """
import os, sys, time
sys.stdin.readline()
os.sched_setaffinity(0, {int(sys.argv[1])})
begin_s, ran_s = time.perf_counter(), time.thread_time()
while time.perf_counter() - begin_s < float(sys.argv[2]):
    pass
print(time.perf_counter() - begin_s - (time.thread_time() - ran_s))
"""
"""Prints the seconds that a process which always wants to run is off its core."""

SPIN_S = 0.6
CALIBRATIONS = 3


def calibrated(ranks: RecordedRanks, key: str, injection: Injection | None) -> float:
    """Return what the injection is measured by, from before the recordings.

    For a quota: the kernel's count over the seconds for which it holds back a process that always wants to
    run. For a link: the seconds by which it lengthens what a step sends, sent alone. Else 0: the injector has
    a clock. Raises `Unavailable` where it cannot be injected here.
    """
    kind = "" if injection is None else injection.kind
    if kind in ("competing_load", "cpu_quota") and not ranks.cores:
        raise Unavailable("it needs a core for each rank")
    if injection is not None and kind == "cpu_quota":
        core = ranks.cores[injection.rank]
        return median(counted_of_held_back(core, injection.share) for _ in range(CALIBRATIONS))
    return lengthened_s(ranks, key, injection) if injection is not None and kind == "slow_link" else 0.0


def counted_of_held_back(core: int, share: float) -> float:
    """Return the kernel's count over the seconds that a quota holds a process back: 1 if both agree."""
    command = [sys.executable, "-c", SPIN, str(core), str(SPIN_S)]
    with (
        CpuQuota() as quota,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        quota.enter(process.pid)
        quota.limit(share)
        off_core_s = float(process.communicate("\n")[0])
        return quota.throttled_s() / off_core_s


def lengthened_s(ranks: RecordedRanks, key: str, injection: Injection) -> float:
    """Return by how many seconds a slower link lengthens what a step sends, if that is sent alone."""
    if ranks.network is None:
        raise Unavailable("a link between processes of one network namespace cannot be slowed")
    longer_s = []
    for _ in range(CALIBRATIONS):
        plain_s = ranks.communicate_s(key)
        with slowed(ranks.network, injection.rate_B_per_s) as switch:
            switch(True)
            longer_s.append(ranks.communicate_s(key) - plain_s)
    return median(longer_s)


def injected_s(recording: Recording, injection: Injection, by: float) -> float:
    """Return the seconds per step that were injected, with what `calibrated` returned."""
    if injection.kind == "slow_link":
        return by
    if injection.kind == "cpu_quota":
        return recording.counted(injection.rank, "throttled_s")
    return recording.counted(injection.rank, "slept_s" if injection.seconds else "load_s")


METRICS = {
    State.COMPUTING: "computing",
    State.COMMUNICATION: "exposed_communication",
    State.COPYING: "copies",
    State.PREPARING: "launch_gap_prepare",
    State.CALLING: "launch_gap_call",
    State.WAITING_FOR_DATA: "waiting_for_data",
    State.WAITING_FOR_RANK: "waiting_for_rank",
    State.IDLE: "idle",
}
"""State of a rank -> the metric of its seconds per step."""

EVERY_RANK = "all ranks"  # the method of a mean over ranks


def recorded(ranks: RecordedRanks, key: str, subject: Subject, order: Random) -> Recording:
    """Record pairs of steps of all ranks under the profiler, and break their traces down."""
    workload = subject.workload
    with tempfile.TemporaryDirectory(dir=ranks.folder) as folder:
        records = ranks.record(key, workload.recorded_pairs, subject.injection, order, folder)
        clock = relative_clock(records, ranks.fastest_chain_s)
        found = breakdown(
            read_traces(Path(folder)),
            model_FLOP=model_FLOP(workload),
            peak_FLOP_per_s=workload.peak_FLOP_per_s or ranks.FLOP_per_s,
            known_factors=None if clock is None else {"frequency": 1 / clock},
        )
        return Recording(found, records, ranks.fastest_chain_s)


class PlainTimes(NamedTuple):
    """The slowest rank's step with what is injected, without the profiler, and how much longer it is."""

    injected_s: float
    rise_s: float


def plain_times(ranks: RecordedRanks, key: str, subject: Subject, order: Random) -> PlainTimes:
    """Time pairs of steps without the profiler."""
    records = ranks.record(key, subject.workload.recorded_pairs, subject.injection, order)
    without_s = np.max([column(one.without, "seconds") for one in records], axis=0)
    injected_s = np.max([column(one.injected, "seconds") for one in records], axis=0)
    return PlainTimes(middle(injected_s), middle(injected_s - without_s))


def relative_clock(records: Sequence[RankRecord], fastest_s: float) -> float | None:
    """Return the mean clock over its peak: of GPUs as sampled (None: it is not), of cores by the chain."""
    telemetry = [record.telemetry for record in records]
    if all("clock_Hz" in one and "peak_clock_Hz" in one for one in telemetry):
        return float(np.mean([one["clock_Hz"] / one["peak_clock_Hz"] for one in telemetry]))
    if torch.cuda.is_available():
        return None
    return fastest_s / middle(
        np.concatenate([column([*one.without, *one.injected], "chain_s") for one in records])
    )


def model_FLOP(workload: Workload) -> float:
    """Return the FLOP of a rank's step: 6 per parameter and token, 12 T d per layer and token for attention.

    Source: Kaplan et al., arXiv 2001.08361; masked scores count too.
    """
    tokens = workload.sequences * workload.seq_len
    attention = 12.0 * workload.num_hidden_layers * workload.hidden_size * workload.seq_len
    return tokens * (6.0 * workload.shape.parameters + attention)


def state_readings(found: Breakdown, origin: Origin, which: slice) -> Iterator[Reading]:
    """Read the seconds per step in each state over some steps, of each rank and as the mean of ranks."""
    step_s = float(np.mean([step_times_s(rank)[which].mean() for rank in found.ranks]))
    for state, metric in METRICS.items():
        times_s = [float(by_step_s(rank, state)[which].mean()) for rank in found.ranks]
        mean_s = float(np.mean(times_s))
        yield Reading(metric, "s", mean_s, origin, EVERY_RANK)
        for rank, time_s in zip(found.ranks, times_s, strict=True):
            yield Reading(metric, "s", time_s, origin, f"rank {rank.rank}")
        yield Reading("share", "1", mean_s / step_s, origin, metric)


def factor_readings(found: Breakdown, origin: Origin) -> Iterator[Reading]:
    """Read the factors from the theoretical to the observed time, over all steps."""
    for factor in found.factors.factors:
        yield Reading("factor", "1", factor.value, origin, factor.name)
    lost_s = losses_s(found)
    if "frequency" in lost_s:
        clock_s = lost_s.pop("frequency")
        yield Reading("frequency_to_largest_other", "1", clock_s / max(lost_s.values()), origin)


def losses_s(found: Breakdown) -> dict[str, float]:
    """Return what each factor adds to the theoretical time, in seconds per step; nothing without it."""
    factors = found.factors
    if factors.base_name != "theoretical":
        return {}
    times_s = [factors.base_s, *(factor.time_s for factor in factors.factors)]
    return {
        factor.name: later - earlier
        for factor, (earlier, later) in zip(factors.factors, pairwise(times_s), strict=True)
    }


def counted_readings(recording: Recording) -> Iterator[Reading]:
    """Read what the system counted over the steps with what is injected, of each rank."""
    for number, rank in enumerate(recording.found.ranks):
        method = f"rank {rank.rank}"
        for metric in ("waited_for_core", "throttled"):
            value_s = recording.counted(number, f"{metric}_s")
            yield Reading(metric, "s", value_s, Origin.MEASURED, method)
        clock = recording.fastest_chain_s / recording.counted(number, "chain_s")
        yield Reading("relative_clock", "1", clock, Origin.MEASURED, f"dependent chain, {method}")
        yield from telemetry_readings(recording.records[number].telemetry, method)


def naming_readings(recording: Recording, injection: Injection | None) -> Iterator[Reading]:
    """Read whether what was injected was named, and whether anything else was, or anything at all."""
    origin = Origin.MEASURED if injection is None else Origin.EMULATED
    injected = None if injection is None else (injection.kind, injection.rank)
    named = [found[:2] for found in diagnose(recording)]
    others = [one for one in named if one != injected]
    yield Reading("named_in_error", "1", float(bool(others)), origin)
    for name, rank in others:
        yield Reading("wrong_name", "1", 1.0, origin, name if rank == ALL_RANKS else f"{name}, rank {rank}")
    if injected is not None:
        yield Reading("named", "1", float(injected in named), origin)


def recovery_readings(recording: Recording, injection: Injection, injected_s: float) -> Iterator[Reading]:
    """Read the seconds per step that the trace recovers of what was injected, and their error."""
    recovered_s = recording.rise_s(injection.kind, injection.rank)
    yield Reading("injected", "s", injected_s, Origin.EMULATED)
    yield Reading("recovered", "s", recovered_s, Origin.EMULATED)
    yield Reading("recovery_error", "1", (recovered_s - injected_s) / recording.step_s, Origin.EMULATED)


@dataclass(frozen=True, slots=True)
class TracedElsewhere:
    """The breakdown of the subject's trace."""

    subject: Subject
    found: Breakdown


def in_a_sentence(found: Breakdown) -> str:
    """Return where the time goes, and what the trace shows about its launch gaps and its loader."""
    return " ".join([sentence(found, causes(found)), *advice(found)])


def readings_elsewhere(session: TracedElsewhere) -> Iterator[Reading | Note]:
    """Read the shares and factors, and what the trace does not have."""
    found = session.found
    yield Reading("profiled_time", "s", found.step_s, Origin.MEASURED)
    yield from state_readings(found, Origin.MEASURED, slice(None))
    yield from factor_readings(found, Origin.MEASURED)
    yield Note(in_a_sentence(found))
    for missing in found.missing:
        yield Note(f"Missing: {missing}")
