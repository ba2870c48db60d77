"""Where the time of a training step goes: shares and factors of each rank, and over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.instruments.traces.activity import Activity
from harness.instruments.traces.collectives import Matching, match
from harness.instruments.traces.factors import Factors, factors, overlap_factor
from harness.instruments.traces.intervals import covered_by_both_ns
from harness.instruments.traces.reading.error import TraceError
from harness.instruments.traces.reading.trace import EventKind, Mask, RankTrace
from harness.instruments.traces.segments import Segments, State, segments
from harness.instruments.traces.shares import TimeShare, WorkShare, shares, work_shares

WORK = (State.COMPUTING, State.COMMUNICATION, State.COPYING, State.WAITING_FOR_RANK)
"""States in which something runs: a step without any of them cannot be broken down."""


@dataclass(frozen=True)
class RankBreakdown:
    """One rank: its steps, and what they went to. `step_ns` is the length of each chosen step."""

    rank: int
    activity: Activity
    segments: Segments
    chosen: tuple[int, ...]  # positions of the steps that all ranks have
    step_ns: tuple[int, ...]
    shares: tuple[TimeShare, ...]
    work: tuple[WorkShare, ...]
    factors: Factors
    overlapped_s: float  # of communication per step, while the rank computes
    fused_s: float  # of that per step, in kernels that compute and communicate
    missing: tuple[str, ...]

    @property
    def step_s(self) -> float:
        """Return the mean time of a step in seconds."""
        return float(np.mean(self.step_ns)) / 1e9

    def share_of(self, state: State) -> float:
        """Return which part of the step is spent in a state, from 0 to 1."""
        return sum(share.mean_s for share in self.shares if share.state == state) / self.step_s


@dataclass(frozen=True)
class Breakdown:
    """All ranks: `shares` are means over ranks. They sum to `step_s`, as the product of the factors does.

    `steps_found` says how the steps were found, "" where the profiler marks them.
    """

    ranks: tuple[RankBreakdown, ...]
    step_numbers: tuple[int, ...]
    step_s: float
    shares: tuple[TimeShare, ...]
    work: tuple[WorkShare, ...]
    factors: Factors
    matching: Matching
    missing: tuple[str, ...]
    steps_found: str

    @property
    def overlapped_s(self) -> float:
        """Return the time per step in which a rank computes and communicates, as a mean over ranks."""
        return float(np.mean([one.overlapped_s for one in self.ranks]))

    @property
    def fused_s(self) -> float:
        """Return the time per step in kernels that compute and communicate, as a mean over ranks."""
        return float(np.mean([one.fused_s for one in self.ranks]))

    @property
    def exposed_s(self) -> float:
        """Return the time per step of communication that nothing hides, waiting for ranks included."""
        return sum(
            share.mean_s
            for share in self.shares
            if share.state in (State.COMMUNICATION, State.WAITING_FOR_RANK)
        )

    def share_of(self, state: State) -> float:
        """Return which part of the step is spent in a state, from 0 to 1, as a mean over ranks."""
        return sum(share.mean_s for share in self.shares if share.state == state) / self.step_s


def breakdown(
    traces: Sequence[RankTrace],
    *,
    model_FLOP: float | None = None,
    peak_FLOP_per_s: float | None = None,
    known_factors: Mapping[str, float] | None = None,
    align_clocks: bool | None = None,
    communication: Sequence[str] = (),
) -> Breakdown:
    """Return where the time of the steps goes that all ranks have.

    `model_FLOP` is per step and rank, `peak_FLOP_per_s` per rank. `known_factors` has what a trace cannot
    have: instruction, utilisation, frequency; overlap overrides that of the trace. `align_clocks`: see
    `collectives.match`. `communication` has regular expressions of kernels that communicate, beyond those
    that are recognized. Raises TraceError, and ValueError for a factor that is unknown or not positive.
    """
    activities = _activities(traces, tuple(communication))
    numbers = _common_steps(activities)
    matching = match(activities, align_clocks)
    given = dict(known_factors or {})

    def factors_of(found: Sequence[TimeShare], overlap: float | None) -> Factors:
        known = given if overlap is None else {"overlap": overlap, **given}
        return factors(found, model_FLOP=model_FLOP, peak_FLOP_per_s=peak_FLOP_per_s, known=known)

    ranks, overlaps = [], []
    for activity, waits in zip(activities, matching.waits, strict=True):
        cut = segments(activity, waits)
        chosen = tuple(i for i, step in enumerate(activity.steps) if step.number in numbers)
        lengths_ns = tuple(activity.steps[i].end_ns - activity.steps[i].start_ns for i in chosen)
        found = shares(activity, cut, chosen)
        _check_work(activity, found)
        overlap = overlap_factor(activity)
        overlaps.append(overlap)
        ranks.append(
            RankBreakdown(
                rank=activity.trace.rank,
                activity=activity,
                segments=cut,
                chosen=chosen,
                step_ns=lengths_ns,
                shares=found,
                work=work_shares(activity, cut, chosen),
                factors=factors_of(found, overlap[0] if overlap else None),
                overlapped_s=_both_s(activity, chosen, activity.computing, activity.communication),
                fused_s=_both_s(activity, chosen, activity.fused, activity.fused),
                missing=_missing(activity),
            )
        )
    mean = tuple(_mean_shares([one.shares for one in ranks]))
    mean_overlap = None if None in overlaps else float(np.mean([one[0] for one in overlaps if one]))
    both = factors_of(mean, mean_overlap)
    missing = dict.fromkeys([*both.missing, *matching.missing, *(m for one in ranks for m in one.missing)])
    if len(traces) < traces[0].world_size:
        missing[_absent_ranks(traces)] = None
    return Breakdown(
        ranks=tuple(ranks),
        step_numbers=numbers,
        step_s=float(np.mean([one.step_s for one in ranks])),
        shares=mean,
        work=tuple(_mean_work([one.work for one in ranks])),
        factors=both,
        matching=matching,
        missing=tuple(missing),
        steps_found=activities[0].found_steps.how,
    )


def _activities(traces: Sequence[RankTrace], patterns: tuple[str, ...]) -> list[Activity]:
    """Return the ranks' activities.

    Where steps are not marked and the ranks show different numbers of them, each rank is one step.
    """
    found = [Activity(trace, patterns) for trace in traces]
    if all(one.found_steps.how for one in found) and len({len(one.steps) for one in found}) > 1:
        return [Activity(trace, patterns, whole=True) for trace in traces]
    return found


def _common_steps(activities: Sequence[Activity]) -> tuple[int, ...]:
    sets = [{step.number for step in activity.steps} for activity in activities]
    common = set.intersection(*sets)
    if not common:
        raise TraceError(
            f"{activities[-1].trace.path}: has no step in common with the other ranks; record the same steps "
            "on all ranks, with the same schedule"
        )
    return tuple(sorted(common))


def _check_work(activity: Activity, found: Sequence[TimeShare]) -> None:
    if not any(share.state in WORK for share in found):
        raise TraceError(
            f"{activity.trace.path}: no kernel and no operator runs within the steps; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (CUDA is also AMD's)"
        )


def _both_s(activity: Activity, chosen: Sequence[int], one: Mask, other: Mask) -> float:
    """Return the mean time per step in which events of two kinds run."""
    edges = np.array([activity.steps[i][1:3] for i in chosen], np.int64)
    both = covered_by_both_ns(activity.pieces(one), activity.pieces(other), edges[:, 0], edges[:, 1])
    return float(np.mean(both)) / 1e9


def _missing(activity: Activity) -> tuple[str, ...]:
    """Return what a rank's trace does not have."""
    trace = activity.trace
    found = []
    launches = int(np.sum(trace.of_kind(EventKind.LAUNCH)))
    if not trace.has_device and launches:
        found.append(
            f"kernels: the trace has {launches} calls of a device's runtime and no kernel, so operators "
            "of the host stand for them; record with ProfilerActivity.CUDA, XPU, MTIA or PrivateUse1, too"
        )
    elif not trace.has_device:
        found.append("launch gap, call: without a GPU an operator is called and starts at once")
    elif np.any(trace.launch_of[activity.computing] < 0):
        count = int(np.sum(trace.launch_of[activity.computing] < 0))
        found.append(
            f"launches of {count} kernels: idle time before them has an unknown cause; record with "
            "ProfilerActivity.CPU, too"
        )
    unread = [name for name in trace.unread if trace.unread[name] > 0]
    if unread:
        found.append(f"events of a device in categories that are not read: {', '.join(sorted(unread))}")
    for pattern in activity.patterns:
        if not np.any(trace.named(pattern) & trace.of_kind(EventKind.KERNEL, EventKind.COPY)):
            found.append(f"kernels for communication={pattern}: no kernel has such a name")
    return tuple(found)


def _absent_ranks(traces: Sequence[RankTrace]) -> str:
    there = f"{len(traces)} of {traces[0].world_size} ranks"
    return f"waiting for ranks that are not there: {there} were given; give the folder of all ranks"


def _mean_shares(by_rank: Sequence[Sequence[TimeShare]]) -> list[TimeShare]:
    """Return the mean over ranks of each share; fractions of nanoseconds are kept, so the sum stays exact."""
    table: dict[tuple[State, str], list[float]] = {}
    for one in by_rank:
        for share in one:
            times = table.setdefault((share.state, share.detail), [0.0] * len(share.by_step_ns))
            for i, time_ns in enumerate(share.by_step_ns):
                times[i] += time_ns
    count = len(by_rank)
    found = [
        TimeShare(state, detail, tuple(time / count for time in times))
        for (state, detail), times in table.items()
    ]
    return sorted(found, key=lambda share: -sum(share.by_step_ns))


def _mean_work(by_rank: Sequence[Sequence[WorkShare]]) -> list[WorkShare]:
    table: dict[tuple[str, str, str, State], list[float]] = {}
    for one in by_rank:
        for share in one:
            times = table.setdefault(share[:4], [0.0] * len(share.by_step_ns))
            for i, time_ns in enumerate(share.by_step_ns):
                times[i] += time_ns / len(by_rank)
    found = [WorkShare(*key, tuple(times)) for key, times in table.items()]
    return sorted(found, key=lambda share: -sum(share.by_step_ns))
