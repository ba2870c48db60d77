"""Take recordings in turn, with and without what is injected, and read what they show."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from harness.instruments.timing.device_telemetry import telemetry_readings
from harness.instruments.traces.breakdown import Breakdown
from harness.instruments.traces.breakdown import breakdown as broken_down
from harness.instruments.traces.kineto import read_traces
from harness.instruments.traces.segments import State
from harness.records import Origin, Reading
from suites.profiling.diagnosis import Finding, Recording, diagnose, middle, rise_s
from suites.profiling.ranks import RecordedRanks
from suites.profiling.recorder import RankRecord
from suites.profiling.subject import Injection, Subject, Workload

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

EVERY_RANK = "all ranks"
"""The method of a mean over ranks."""


class Compared(NamedTuple):
    """A recording, and the two taken just before and after it, with nothing injected."""

    recording: Recording
    before: Recording
    after: Recording

    @property
    def findings(self) -> list[Finding]:
        """Return what is named against both, with the mean of both differences; largest first."""
        one, other = (
            {found[:2]: found for found in diagnose(self.recording, reference)}
            for reference in (self.before, self.after)
        )
        both = [Finding(*key, (one[key].seconds + other[key].seconds) / 2) for key in one if key in other]
        return sorted(both, key=lambda found: -found.seconds)

    def rise_s(self, name: str, rank: int) -> float:
        """Return by how many seconds per step the states of a cause grew, against the mean of both."""
        return (
            rise_s(self.recording, self.before, name, rank) + rise_s(self.recording, self.after, name, rank)
        ) / 2

    @property
    def reference_s(self) -> float:
        """Return the time of a step with nothing injected."""
        return (self.before.step_s + self.after.step_s) / 2


def recorded(ranks: RecordedRanks, key: str, subject: Subject, injection: Injection | None) -> Recording:
    """Record steps of all ranks under the profiler, and break their traces down."""
    with tempfile.TemporaryDirectory(dir=ranks.folder) as folder:
        records = ranks.record(key, subject.workload.recorded_steps, folder, injection)
        clock = relative_clock(records)
        found = broken_down(
            read_traces(Path(folder)),
            model_FLOP=model_FLOP(subject.workload),
            peak_FLOP_per_s=subject.workload.peak_FLOP_per_s or ranks.FLOP_per_s,
            known_factors=None if clock is None else {"frequency": 1 / clock},
        )
        return Recording(found, records)


def relative_clock(records: Sequence[RankRecord]) -> float | None:
    """Return the mean clock over its peak: of GPUs as sampled (None: it is not), of cores by the chain."""
    telemetry = [record.telemetry for record in records]
    if all("clock_Hz" in one and "peak_clock_Hz" in one for one in telemetry):
        return float(np.mean([one["clock_Hz"] / one["peak_clock_Hz"] for one in telemetry]))
    if torch.cuda.is_available():
        return None
    return middle(np.array([one.relative_clock for record in records for one in record.accounts]))


def model_FLOP(workload: Workload) -> float:
    """Return the FLOP of a rank's step: 6 per parameter and token, 12 T d per layer and token for attention.

    Source: Kaplan et al., arXiv 2001.08361; half of the attention's scores are masked, and counted.
    """
    tokens = workload.sequences * workload.seq_len
    attention = 12.0 * workload.num_hidden_layers * workload.hidden_size * workload.seq_len
    return tokens * (6.0 * workload.shape.parameters + attention)


def in_turn(ranks: RecordedRanks, key: str, subject: Subject) -> Iterator[Compared]:
    """Take the workload's number of recordings, each between two with nothing injected."""
    before = recorded(ranks, key, subject, None)
    for _ in range(subject.workload.recordings):
        recording = recorded(ranks, key, subject, subject.injection)
        after = recorded(ranks, key, subject, None)
        yield Compared(recording, before, after)
        before = after


def plain_s(ranks: RecordedRanks, key: str, subject: Subject) -> float:
    """Return the middle time of a step of the slowest rank, without the profiler."""
    records = ranks.record(key, subject.workload.recorded_steps, "", subject.injection)
    return max(middle(np.array([one.seconds for one in record.accounts])) for record in records)


def state_readings(found: Breakdown, origin: Origin) -> Iterator[Reading]:
    """Read the seconds per step in each state, of each rank and as the mean over ranks, and the factors."""
    for state, metric in METRICS.items():
        times_s = [rank.share_of(state) * rank.step_s for rank in found.ranks]
        for method, value in [
            (EVERY_RANK, float(np.mean(times_s))),
            *((f"rank {r.rank}", t) for r, t in zip(found.ranks, times_s, strict=True)),
        ]:
            yield Reading(metric, "s", value, origin, method)
        yield Reading("share", "1", found.share_of(state), origin, metric)
    for factor in found.factors.factors:
        yield Reading("factor", "1", factor.value, origin, factor.name)
    lost_s = losses_s(found)
    if "frequency" in lost_s:
        clock_s = lost_s.pop("frequency")
        yield Reading("frequency_to_largest_other", "1", clock_s / max(lost_s.values()), origin)
    product = found.factors.observed_s / found.step_s
    yield Reading("product_error", "1", product - 1, origin)


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
    """Read what the system counted over the steps, of each rank."""
    for number, rank in enumerate(recording.found.ranks):
        method = f"rank {rank.rank}"
        yield Reading(
            "waited_for_core", "s", recording.counted_s(number, "waited_for_core_s"), Origin.MEASURED, method
        )
        yield Reading("throttled", "s", recording.counted_s(number, "throttled_s"), Origin.MEASURED, method)
        clock = recording.counted_s(number, "relative_clock")
        yield Reading("relative_clock", "1", clock, Origin.MEASURED, f"dependent chain, {method}")
        yield from telemetry_readings(recording.records[number].telemetry, method)


def naming_readings(compared: Compared, injection: Injection | None, injected_s: float) -> Iterator[Reading]:
    """Read what was named, and of what was injected the seconds that the trace recovers, per step."""
    kind, rank = (None, -1) if injection is None else (injection.kind, injection.rank)
    named = [found[:2] for found in compared.findings]
    others = [one for one in named if one != (kind, rank)]
    origin = Origin.MEASURED if injection is None else Origin.EMULATED
    yield Reading("named_in_error", "1", float(bool(others)), origin)
    for name, of in others:
        yield Reading("wrong_name", "1", 1.0, origin, name if of < 0 else f"{name}, rank {of}")
    if injection is None:
        return
    yield Reading("named", "1", float((kind, rank) in named), origin)
    recovered_s = compared.rise_s(injection.kind, rank)
    yield Reading("injected", "s", injected_s, origin)
    yield Reading("recovered", "s", recovered_s, origin)
    yield Reading("recovery_error", "1", (recovered_s - injected_s) / compared.recording.step_s, origin)
