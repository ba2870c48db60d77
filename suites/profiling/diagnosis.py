"""Name what a recording lost time to: causes that the trace shows, explained by what was counted meanwhile.

`harness.instruments.traces.causes` finds which state of which rank takes longer than it should. The trace of
a rank that computes longer does not show why. The kernel's counters do: a quota held its group back, its
thread waited for a core, or its core was slower. Where none of these grew, the cause is not named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.traces.breakdown import Breakdown, RankBreakdown
from harness.instruments.traces.causes import Cause, causes
from harness.instruments.traces.segments import State
from suites.profiling.recorder import RankRecord

EXPLAINS = 0.5
"""A counter explains longer computing if it grew by at least this share of it."""

LEAST_SHARE = 0.03
"""A counter that grew by less than this share of the step explains nothing."""

OWN = (State.COMPUTING, State.COPYING, State.PREPARING, State.CALLING, State.WAITING_FOR_DATA)
"""States of a rank's own time: what slows its thread down makes all of them longer."""

STATES = {
    "data_wait": (State.WAITING_FOR_DATA,),
    "launch_sleep": (State.PREPARING, State.CALLING),
    "competing_load": OWN,
    "cpu_quota": OWN,
    "slower_clock": OWN,
    "slow_link": (State.COMMUNICATION,),
}
"""What a cause is called -> the states in which its time is."""


class Recording(NamedTuple):
    """Steps of all ranks: the breakdown of their traces, and each rank's records of the same steps."""

    found: Breakdown
    records: Sequence[RankRecord]

    @property
    def step_s(self) -> float:
        """Return the middle time of a step, as a mean over ranks."""
        return float(np.mean([middle(np.array(rank.step_ns) / 1e9) for rank in self.found.ranks]))

    def state_s(self, rank: int, states: Sequence[State]) -> float:
        """Return the middle seconds per step of a rank in these states together."""
        return middle(sum((by_step_s(self.found.ranks[rank], state) for state in states), np.zeros(1)))

    def counted_s(self, rank: int, name: str) -> float:
        """Return the middle of a rank's account per step."""
        return middle(np.array([getattr(one, name) for one in self.records[rank].accounts]))


class Finding(NamedTuple):
    """A named cause: what, of which rank (-1: all), and the seconds per step that it takes."""

    name: str
    rank: int
    seconds: float


def middle(samples: NDArray[np.float64]) -> float:
    """Return the mean of the middle half of the samples: single disturbed steps do not count."""
    ordered = np.sort(samples)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def by_step_s(rank: RankBreakdown, state: State) -> NDArray[np.float64]:
    """Return the seconds of a state in each step. [step]"""
    times = [share.by_step_ns for share in rank.shares if share.state == state]
    return np.asarray(np.sum(times, axis=0) / 1e9 if times else np.zeros(len(rank.step_ns)))


def rise_s(of: Recording, reference: Recording, name: str, rank: int) -> float:
    """Return by how many seconds per step the states of a cause grew; of a link on the rank of the least."""
    ranks = range(len(of.found.ranks)) if rank < 0 else [rank]
    return min(of.state_s(one, STATES[name]) - reference.state_s(one, STATES[name]) for one in ranks)


def diagnose(of: Recording, reference: Recording) -> list[Finding]:
    """Return the named causes, largest first; none where nothing shows beyond the noise of the steps."""
    found: dict[tuple[str, int], Finding] = {}
    for cause in causes(of.found, reference.found):
        for name, rank in _names(cause, of, reference):
            found[name, rank] = Finding(name, rank, rise_s(of, reference, name, rank))
    slowed = {rank for name, rank in found if STATES[name] is OWN}
    kept = [one for one in found.values() if STATES[one.name] is OWN or not slowed]
    return sorted(kept, key=lambda one: -one.seconds)


def _names(cause: Cause, of: Recording, reference: Recording) -> Iterator[tuple[str, int]]:
    """Return what a cause is called and of which rank; nothing for a symptom or without an explanation."""
    ranks = [cause.rank] if cause.rank >= 0 else range(len(of.found.ranks))
    if cause.state == State.COMMUNICATION and cause.rank < 0:
        yield "slow_link", -1
    for rank in ranks:
        if cause.state == State.WAITING_FOR_RANK or cause.state == State.COMPUTING:
            name = _explained(of, reference, rank)
            if name:
                yield name, rank
        for name in ("data_wait", "launch_sleep"):
            grew_s = rise_s(of, reference, name, rank)
            if cause.state in STATES[name] and grew_s >= LEAST_SHARE * of.step_s:
                yield name, rank


def _explained(of: Recording, reference: Recording, rank: int) -> str:
    """Return why a rank computes longer, by what was counted; "" where nothing explains it."""
    longer_s = rise_s(of, reference, "competing_load", rank)
    least_s = max(EXPLAINS * longer_s, LEAST_SHARE * of.step_s)
    throttled_s = of.counted_s(rank, "throttled_s") - reference.counted_s(rank, "throttled_s")
    waited_s = of.counted_s(rank, "waited_for_core_s") - reference.counted_s(rank, "waited_for_core_s")
    if longer_s < LEAST_SHARE * of.step_s:
        return ""
    if throttled_s >= least_s:
        return "cpu_quota"
    if waited_s >= least_s:
        return "competing_load"
    clock, before = of.counted_s(rank, "relative_clock"), reference.counted_s(rank, "relative_clock")
    slower_s = (before / clock - 1) * reference.state_s(rank, [State.COMPUTING])
    return "slower_clock" if slower_s >= least_s else ""
