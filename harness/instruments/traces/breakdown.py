"""Where the time of a training step goes: shares and factors of each rank, and over all ranks.
 arrives at a collective when the kernel starts (gloo: when it is called). Until the last rank of the
group has arrived, no rank can complete a collective that needs all of them: that time is waiting for the
last rank. It needs one clock. Ranks of one host have one; else a clock that differs shows where a rank ends a
collective that another has not begun, and then the clocks are shifted by the median difference of the ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import NamedTuple, TypeVar

import numpy as np

from harness.instruments.traces import TraceError
from harness.instruments.traces.activity import Activity
from harness.instruments.traces.factors import (
    Factors,
    TimeShare,
    WorkShare,
    factors,
    overlap_factor,
    shares,
    time_in,
    work_shares,
)
from harness.instruments.traces.segments import Segments, State, Wait, segments
from harness.instruments.traces.trace import (
    CollectiveCall,
    EventKind,
    Ints,
    Mask,
    RankTrace,
    covered_ns,
    intersection,
)

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank completes before all have arrived."""

NO_GROUPS = (
    "which ranks wait: the trace has several process groups and does not report the group of each collective"
)


class CollectiveKey(NamedTuple):
    """What makes a collective the same on all ranks of its group."""

    group: str
    ranks: str
    operation: str
    step: int  # -1 where the trace has sequence numbers
    number: int  # its sequence number, else its place among those of the step


@dataclass(frozen=True)
class Matching:
    """Who waits for whom, by the position of the ranks' traces."""

    waits: tuple[Mapping[int, Wait], ...]  # event of communication: its wait
    offsets_ns: tuple[int, ...]  # what is subtracted from each rank's clock
    clocks: str  # how the clocks were compared, in a sentence; "" for one rank
    collectives: int  # matched
    missing: tuple[str, ...]


def match(activities: Sequence[Activity], align: bool | None = None) -> Matching:
    """Return who waits for whom. `align`: shift clocks; None: if hosts may differ and they contradict."""
    count = len(activities)
    nothing = Matching(tuple({} for _ in activities), (0,) * count, "", 0, ())
    if count == 1:
        return nothing
    if any(_is_ambiguous(one) for one in activities):
        return replace(nothing, missing=(NO_GROUPS,))
    found = [_keyed(one) for one in activities]
    seen = Counter(key for one in found for key in one)
    shared = [key for key, ranks in seen.items() if ranks > 1]
    if not shared:
        return replace(nothing, missing=("which ranks wait: the ranks share no collective in their steps",))
    events = np.array([[one.get(key, -1) for one in found] for key in shared])
    times = [(one.trace.start_ns, one.trace.end_ns) for one in activities]
    start_ns = np.stack([start[events[:, rank]] for rank, (start, _) in enumerate(times)], axis=1)
    end_ns = np.stack([end[events[:, rank]] for rank, (_, end) in enumerate(times)], axis=1)
    offsets_ns, clocks, missing = _offsets(activities, start_ns, end_ns, events >= 0, align)
    waits = _waits(activities, events, start_ns - offsets_ns, offsets_ns)
    return Matching(waits, tuple(int(one) for one in offsets_ns), clocks, len(shared), missing)


def _keyed(activity: Activity) -> dict[CollectiveKey, int]:
    """Return each synchronising collective in the steps of a rank by its key."""
    trace = activity.trace
    found: dict[CollectiveKey, int] = {}
    counts = Counter[CollectiveKey]()
    events = np.flatnonzero(activity.communication)
    steps = activity.step_at(trace.start_ns[np.maximum(trace.host_event[events], 0)])
    for event, at in zip(events.tolist(), steps.tolist(), strict=True):
        operation = activity.operation(event)
        if at < 0 or operation not in SYNCHRONISING:
            continue
        call = trace.collectives.get(event, CollectiveCall(operation))
        key = CollectiveKey(call.group, call.ranks, operation, -1, call.sequence)
        if call.sequence < 0:
            key = key._replace(step=activity.steps[at].number)
            counts[key] += 1
            key = key._replace(number=counts[key])
        found[key] = event
    return found


def _is_ambiguous(activity: Activity) -> bool:
    """Return whether collectives may be of several groups and do not say of which."""
    groups = {ranks for ranks in activity.trace.process_groups.values() if len(ranks) > 1}
    if len(groups) < 2:
        return False
    calls = activity.trace.collectives
    return any(int(event) not in calls for event in np.flatnonzero(activity.communication))


def _offsets(
    activities: Sequence[Activity], start_ns: Ints, end_ns: Ints, present: Mask, align: bool | None
) -> tuple[Ints, str, tuple[str, ...]]:
    """Return what to subtract from each rank's clock, how that was decided, and what is missing."""
    offsets_ns, aligned = np.zeros(len(activities), np.int64), {0}
    hosts = {one.trace.host for one in activities}
    one_host = len(hosts) == 1 and hosts != {""}
    latest = np.where(present, start_ns, np.iinfo(np.int64).min).max(axis=1)
    early_ns = np.where(present, latest[:, None] - end_ns, 0)
    contradicted = int(np.sum(np.any(early_ns > 0, axis=1)))
    if align is False or (align is None and (one_host or not contradicted)):
        why = "All ranks ran on one host: clocks" if one_host else "Clocks"
        count = f"contradict each other in {contradicted}"
        found = count if contradicted else "do not contradict each other in any"
        found += f" of {len(start_ns)} collectives"
        missing = (f"one clock for all ranks: clocks {found}; clocks=aligned shifts them",)
        return offsets_ns, f"{why} are compared as recorded; they {found}.", missing if contradicted else ()
    while joined := _next_rank(present, aligned):
        rank, by = joined
        both = present[:, rank] & present[:, by]
        difference = np.median(end_ns[both, rank] - end_ns[both, by])
        offsets_ns[rank] = offsets_ns[by] + round(float(difference))
        aligned.add(rank)
    by_ends = f"Clocks are aligned by the ends of {len(start_ns)} collectives (median)"
    largest_ms = float(np.abs(offsets_ns).max()) / 1e6
    return offsets_ns, f"{by_ends}; the largest shift is {largest_ms:.3g} ms.", ()


def _next_rank(present: Mask, aligned: set[int]) -> tuple[int, int] | None:
    """Return a rank that shares collectives with an aligned one, and that one."""
    others = (rank for rank in range(present.shape[1]) if rank not in aligned)
    pairs = product(others, sorted(aligned))
    return next((pair for pair in pairs if np.any(present[:, pair].all(axis=1))), None)


def _waits(
    activities: Sequence[Activity], events: Ints, arrival_ns: Ints, offsets_ns: Ints
) -> tuple[dict[int, Wait], ...]:
    arrival_ns = np.where(events >= 0, arrival_ns, np.iinfo(np.int64).min)
    last = arrival_ns.argmax(axis=1)
    waits: tuple[dict[int, Wait], ...] = tuple({} for _ in activities)
    for i, slowest in enumerate(last.tolist()):
        for rank, event in enumerate(events[i].tolist()):
            if event >= 0 and rank != slowest:
                until_ns = int(arrival_ns[i, slowest] + offsets_ns[rank])
                until_ns = min(until_ns, int(activities[rank].trace.end_ns[event]))
                waits[rank][event] = Wait(until_ns, activities[slowest].trace.rank)
    return waits


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
    overlapped_s: float  # of communication per step, while the rank computes
    fused_s: float  # of that per step, in kernels that compute and communicate

    @property
    def step_s(self) -> float:
        """Return the mean time of a step in seconds."""
        return float(np.mean(self.step_ns)) / 1e9

    def share_of(self, state: State) -> float:
        """Return which part of the step is spent in a state, from 0 to 1."""
        return time_in(self.shares, state) / self.step_s


@dataclass(frozen=True)
class Breakdown:
    """All ranks: `shares` are means and sum to `step_s`; `steps_found`: how, "" if the profiler did."""

    ranks: tuple[RankBreakdown, ...]
    step_numbers: tuple[int, ...]
    step_s: float
    shares: tuple[TimeShare, ...]
    work: tuple[WorkShare, ...]
    factors: Factors
    matching: Matching
    missing: tuple[str, ...]
    steps_found: str
    overlapped_s: float  # means of the ranks'
    fused_s: float

    @property
    def exposed_s(self) -> float:
        """Return the time per step of communication that nothing hides, waiting for ranks included."""
        return time_in(self.shares, State.COMMUNICATION, State.WAITING_FOR_RANK)

    def share_of(self, state: State) -> float:
        """Return which part of the step is spent in a state, from 0 to 1, as a mean over ranks."""
        return time_in(self.shares, state) / self.step_s


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
    `match`. `communication` has regular expressions of kernels that communicate, beyond those
    that are recognized. Raises TraceError, and ValueError for a factor that is unknown or not positive.
    """
    activities = _activities(traces, tuple(communication))
    numbers = _common_steps(activities)
    matching = match(activities, align_clocks)
    each = zip(activities, matching.waits, strict=True)
    ranks = tuple(_of_rank(activity, waits, numbers) for activity, waits in each)
    known, overlaps = dict(known_factors or {}), list(filter(None, map(overlap_factor, activities)))
    if len(overlaps) == len(ranks):
        known = {"overlap": float(np.mean(overlaps)), **known}
    mean = _means([one.shares for one in ranks])
    found = factors(mean, model_FLOP=model_FLOP, peak_FLOP_per_s=peak_FLOP_per_s, known=known)
    missing = [*found.missing, *matching.missing, *(line for one in activities for line in _missing(one))]
    if len(traces) < traces[0].world_size:
        there = f"{len(traces)} of {traces[0].world_size} ranks"
        missing.append(
            f"waiting for ranks that are not there: {there} were given; give the folder of all ranks"
        )
    return Breakdown(
        ranks=ranks,
        step_numbers=numbers,
        step_s=float(np.mean([one.step_s for one in ranks])),
        shares=mean,
        work=_means([one.work for one in ranks]),
        factors=found,
        matching=matching,
        missing=tuple(dict.fromkeys(missing)),
        steps_found=activities[0].found_steps.how,
        overlapped_s=float(np.mean([one.overlapped_s for one in ranks])),
        fused_s=float(np.mean([one.fused_s for one in ranks])),
    )


def _of_rank(activity: Activity, waits: Mapping[int, Wait], numbers: tuple[int, ...]) -> RankBreakdown:
    """Return what one rank's steps of these numbers went to; raises TraceError where nothing runs in them."""
    cut = segments(activity, waits)
    chosen = tuple(i for i, step in enumerate(activity.steps) if step.number in numbers)
    found = shares(activity, cut, chosen)
    if not any(share.state in WORK for share in found):
        raise TraceError(
            f"{activity.trace.path}: no kernel and no operator runs within the steps; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (CUDA is also AMD's)"
        )
    return RankBreakdown(
        rank=activity.trace.rank,
        activity=activity,
        segments=cut,
        chosen=chosen,
        step_ns=tuple(np.diff(activity.edges_ns[list(chosen)])[:, 0].tolist()),
        shares=found,
        work=work_shares(activity, cut, chosen),
        overlapped_s=_both_s(activity, chosen, activity.computing, activity.communication),
        fused_s=_both_s(activity, chosen, activity.fused, activity.fused),
    )


def _activities(traces: Sequence[RankTrace], patterns: tuple[str, ...]) -> list[Activity]:
    """Return the ranks' activities; each is one step where unmarked steps differ in number."""
    found = [Activity(trace, patterns) for trace in traces]
    if all(one.found_steps.how for one in found) and len({len(one.steps) for one in found}) > 1:
        return [Activity(trace, patterns, whole=True) for trace in traces]
    return found


def _common_steps(activities: Sequence[Activity]) -> tuple[int, ...]:
    common = set.intersection(*({step.number for step in activity.steps} for activity in activities))
    if not common:
        raise TraceError(
            f"{activities[-1].trace.path}: has no step in common with the other ranks; record the same steps "
            "on all ranks, with the same schedule"
        )
    return tuple(sorted(common))


def _both_s(activity: Activity, chosen: Sequence[int], one: Mask, other: Mask) -> float:
    start_ns, end_ns = activity.edges_ns[list(chosen)].T
    both = intersection(activity.trace.pieces(one), activity.trace.pieces(other))
    return float(np.mean(covered_ns(both, start_ns, end_ns))) / 1e9


def _missing(activity: Activity) -> tuple[str, ...]:
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
    elif count := int(np.sum(trace.launch_of[activity.computing] < 0)):
        found.append(
            f"launches of {count} kernels: idle time before them has an unknown cause; record with "
            "ProfilerActivity.CPU, too"
        )
    if trace.unread:
        found.append(f"events of a device in categories that are not read: {', '.join(sorted(trace.unread))}")
    for pattern in activity.patterns:
        if not np.any(trace.named(pattern) & trace.of_kind(EventKind.KERNEL, EventKind.COPY)):
            found.append(f"kernels for communication={pattern}: no kernel has such a name")
    return tuple(found)


AnyShare = TypeVar("AnyShare", TimeShare, WorkShare)


def _means(by_rank: Sequence[Sequence[AnyShare]]) -> tuple[AnyShare, ...]:
    """Return the mean over ranks of each share; fractions of nanoseconds are kept, so the sum stays exact."""
    table: dict[AnyShare, list[tuple[float, ...]]] = {}
    for share in chain.from_iterable(by_rank):
        table.setdefault(share._replace(by_step_ns=()), []).append(share.by_step_ns)
    found = [
        share._replace(by_step_ns=tuple((np.sum(times, axis=0) / len(by_rank)).tolist()))
        for share, times in table.items()
    ]
    return tuple(sorted(found, key=lambda share: -sum(share.by_step_ns)))
