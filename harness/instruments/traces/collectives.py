"""Match the collectives of several ranks, align the ranks' clocks, and find who waits for whom.

A rank arrives at a collective when the kernel starts (gloo: when it is called). Until the last rank of the
group has arrived, no rank can complete a collective that needs all of them: that time is waiting for the
last rank. It needs one clock. Ranks of one host have one; else a clock that differs shows where a rank ends a
collective that another has not begun, and then the clocks are shifted by the median difference of the ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from harness.instruments.traces.activity import Activity
from harness.instruments.traces.reading.trace import Ints
from harness.instruments.traces.segments import Wait

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
    """Return who waits for whom.

    `align` says whether clocks are shifted; None: where hosts differ or are unknown, and the clocks
    contradict each other.
    """
    count = len(activities)
    nothing = Matching(tuple({} for _ in activities), (0,) * count, "", 0, ())
    if count == 1:
        return nothing
    if any(_is_ambiguous(one) for one in activities):
        return replace(nothing, missing=(NO_GROUPS,))
    found = [keyed(one) for one in activities]
    shared = _shared(found)
    if not shared:
        return replace(nothing, missing=("which ranks wait: the ranks share no collective in their steps",))
    start_ns = np.array([_times(activities, found, key, "start_ns") for key in shared], np.int64)
    end_ns = np.array([_times(activities, found, key, "end_ns") for key in shared], np.int64)
    present = np.array([[key in one for one in found] for key in shared])
    offsets_ns, clocks, missing = _offsets(activities, start_ns, end_ns, present, align)
    waits = _waits(activities, found, shared, start_ns - offsets_ns, present, offsets_ns)
    return Matching(waits, tuple(int(one) for one in offsets_ns), clocks, len(shared), missing)


def keyed(activity: Activity) -> dict[CollectiveKey, int]:
    """Return each synchronising collective in the steps of a rank by its key."""
    trace = activity.trace
    found: dict[CollectiveKey, int] = {}
    counts: dict[CollectiveKey, int] = {}
    starts_ns = np.array([step.start_ns for step in activity.steps], np.int64)
    for event in np.flatnonzero(activity.communication):
        called_ns = trace.start_ns[max(activity.host_event[event], 0)]
        at = int(np.searchsorted(starts_ns, called_ns, side="right")) - 1
        operation = activity.operation(int(event))
        if at < 0 or called_ns >= activity.steps[at].end_ns or operation not in SYNCHRONISING:
            continue
        call = trace.collectives.get(int(event))
        ranks = call.ranks if call else ""
        if call and call.sequence >= 0:
            found[CollectiveKey(call.group, ranks, operation, -1, call.sequence)] = int(event)
            continue
        key = CollectiveKey(call.group if call else "", ranks, operation, activity.steps[at].number, 0)
        counts[key] = counts.get(key, 0) + 1
        found[key._replace(number=counts[key])] = int(event)
    return found


def _is_ambiguous(activity: Activity) -> bool:
    """Return whether collectives may be of several groups and do not say of which."""
    groups = {ranks for ranks in activity.trace.process_groups.values() if len(ranks) > 1}
    if len(groups) < 2:
        return False
    calls = activity.trace.collectives
    return any(int(event) not in calls for event in np.flatnonzero(activity.communication))


def _shared(found: Sequence[Mapping[CollectiveKey, int]]) -> list[CollectiveKey]:
    """Return the keys that at least two ranks have, in the order of the first."""
    seen: dict[CollectiveKey, int] = {}
    for one in found:
        for key in one:
            seen[key] = seen.get(key, 0) + 1
    return [key for key, count in seen.items() if count > 1]


def _times(
    activities: Sequence[Activity],
    found: Sequence[Mapping[CollectiveKey, int]],
    key: CollectiveKey,
    name: str,
) -> list[int]:
    """Return a time of one collective on each rank, 0 where it has none."""
    return [
        int(getattr(one.trace, name)[events[key]]) if key in events else 0
        for one, events in zip(activities, found, strict=True)
    ]


def _offsets(
    activities: Sequence[Activity], start_ns: Ints, end_ns: Ints, present: Ints, align: bool | None
) -> tuple[Ints, str, tuple[str, ...]]:
    """Return what to subtract from each rank's clock, how that was decided, and what is missing."""
    none = np.zeros(len(activities), np.int64)
    hosts = {one.trace.host for one in activities}
    one_host = len(hosts) == 1 and hosts != {""}
    latest = np.where(present, start_ns, np.iinfo(np.int64).min).max(axis=1)
    early_ns = np.where(present, latest[:, None] - end_ns, 0)
    contradicted = int(np.sum(np.any(early_ns > 0, axis=1)))
    if align is False or (align is None and (one_host or not contradicted)):
        why = "All ranks ran on one host: clocks" if one_host else "Clocks"
        state = (
            f"contradict each other in {contradicted}"
            if contradicted
            else "do not contradict each other in any"
        )
        found = f"{state} of {len(start_ns)} collectives"
        missing = (f"one clock for all ranks: clocks {found}; clocks=aligned shifts them",)
        return none, f"{why} are compared as recorded; they {found}.", missing if contradicted else ()
    offsets_ns, aligned = none.copy(), {0}
    while joined := _next_rank(present, aligned):
        rank, by = joined
        both = present[:, rank] & present[:, by]
        difference = np.median(end_ns[both, rank] - end_ns[both, by])
        offsets_ns[rank] = offsets_ns[by] + round(float(difference))
        aligned.add(rank)
    largest_ms = float(np.abs(offsets_ns).max()) / 1e6
    return (
        offsets_ns,
        f"Clocks are aligned by the ends of {len(start_ns)} collectives (median); the largest shift is "
        f"{largest_ms:.3g} ms.",
        (),
    )


def _next_rank(present: Ints, aligned: set[int]) -> tuple[int, int] | None:
    """Return a rank that shares collectives with an aligned one, and that one."""
    for rank in range(present.shape[1]):
        if rank not in aligned:
            for by in sorted(aligned):
                if np.any(present[:, rank] & present[:, by]):
                    return rank, by
    return None


def _waits(
    activities: Sequence[Activity],
    found: Sequence[Mapping[CollectiveKey, int]],
    shared: Sequence[CollectiveKey],
    arrival_ns: Ints,
    present: Ints,
    offsets_ns: Ints,
) -> tuple[dict[int, Wait], ...]:
    """Return the wait of each rank but the last in each collective."""
    arrival_ns = np.where(present, arrival_ns, np.iinfo(np.int64).min)
    last = arrival_ns.argmax(axis=1)
    waits: tuple[dict[int, Wait], ...] = tuple({} for _ in activities)
    for i, key in enumerate(shared):
        slowest = int(last[i])
        for rank, activity in enumerate(activities):
            if present[i, rank] and rank != slowest:
                event = found[rank][key]
                until_ns = int(arrival_ns[i, slowest] + offsets_ns[rank])
                until_ns = min(until_ns, int(activity.trace.end_ns[event]))
                waits[rank][event] = Wait(until_ns, activities[slowest].trace.rank)
    return waits
