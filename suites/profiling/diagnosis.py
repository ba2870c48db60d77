"""Name what steps lost time to: differences in the trace, explained by what was counted meanwhile.

A recording has pairs of steps, one with what is suspected and one without. A state of a rank that takes
longer, beyond the noise of the pairs, is a loss. Of longer computing the trace does not show why, but the
kernel's counters do: a quota held the rank's group back, its thread waited for a core, or its core was
slower. Where none of these grew, the loss is not named.

A difference shows where it is at least `LEAST_SHARE` of the step and its lower confidence bound is above
zero, by a trimmed mean (Yuen, Biometrika 61, 1974), one-sided, at `ERROR_RATE` divided by the number of
differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from harness.instruments.traces.breakdown import Breakdown, RankBreakdown
from harness.instruments.traces.segments import State
from suites.profiling.ranks import RankRecord
from suites.profiling.recorder import StepAccount

LEAST_SHARE = 0.03  # a difference below this share of the step is not named
ERROR_RATE = 0.01  # share of recordings with nothing injected in which a loss is named, at most
EXPLAINS = 0.5  # a counter explains longer computing if it grew by at least this share of it

TRIM = 0.25
"""Share of the differences that is left out at either end: single disturbed steps do not count."""

OWN = (
    State.COMPUTING,
    State.COPYING,
    State.PREPARING,
    State.CALLING,
    State.WAITING_FOR_DATA,
    State.COMMUNICATION,
)
"""States of a rank's own time, all but waiting for others: what slows its core down makes them longer.
Communication too, where gloo's threads move the data; over NCCL no such loss is injected."""

ALL_RANKS = -1

STATES = {
    "data_wait": (State.WAITING_FOR_DATA,),
    "launch_sleep": (State.PREPARING, State.CALLING),
    "competing_load": OWN,
    "cpu_quota": OWN,
    "slower_clock": OWN,
    "slow_link": (State.COMMUNICATION,),
}
"""What a loss is called -> the states in which its time is."""

Floats = NDArray[np.float64]


class Finding(NamedTuple):
    """A named loss: what, of which rank, and the seconds per step that it takes."""

    name: str
    rank: int  # or ALL_RANKS
    seconds: float


class Recording(NamedTuple):
    """Pairs of steps of all ranks: the breakdown of their traces, and each rank's accounts.

    `fastest_chain_s` is the fastest chain of dependent operations that any of the ranks has seen so far.
    """

    found: Breakdown
    records: Sequence[RankRecord]
    fastest_chain_s: float

    @property
    def step_s(self) -> float:
        """Return the time of a step with what is injected, as the mean over ranks."""
        return float(np.mean([middle(step_times_s(rank)[1::2]) for rank in self.found.ranks]))

    def rise_s(self, name: str, rank: int) -> float:
        """Return by how many seconds per step the states of a loss grew."""
        return middle(self.differences_s(name, rank))

    def differences_s(self, name: str, rank: int) -> Floats:
        """Return by how many seconds the states of a loss are longer; of a link on average. [pair]"""
        ranks = self.found.ranks if rank == ALL_RANKS else [self.found.ranks[rank]]
        times = [by_step_s(one, state) for one in ranks for state in STATES[name]]
        total = np.sum(times, axis=0) / len(ranks)
        return np.asarray(total[1::2] - total[0::2])

    def counted(self, rank: int, name: str) -> float:
        """Return the middle of a rank's account over steps with what is injected."""
        return middle(column(self.records[rank].injected, name))

    @property
    def slowest_s(self) -> float:
        """Return the time of a step with what is injected on the slowest rank, by its own clock."""
        return middle(np.max([column(one.injected, "seconds") for one in self.records], axis=0))

    def counted_rise(self, rank: int, name: str) -> float:
        """Return by how much an account grew."""
        record = self.records[rank]
        return middle(column(record.injected, name) - column(record.without, name))


def column(accounts: Sequence[StepAccount], name: str) -> Floats:
    """Return one account of each step. [step]"""
    return np.array([getattr(one, name) for one in accounts])


def middle(samples: Floats) -> float:
    """Return the mean without the lowest and the highest quarter."""
    ordered = np.sort(samples)
    cut = int(TRIM * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def lower_bound(samples: Floats, error_rate: float) -> float:
    """Return the one-sided lower bound of the trimmed mean; -inf for fewer than two that are left."""
    count = len(samples)
    cut = int(TRIM * count)
    kept = count - 2 * cut
    if kept < 2:
        return -math.inf
    ordered = np.sort(samples)
    winsorized = np.clip(ordered, ordered[cut], ordered[count - cut - 1])
    error = math.sqrt(float(winsorized.var(ddof=1)) * (count - 1) / (kept * (kept - 1)))
    return middle(samples) - float(stdtrit(kept - 1, 1 - error_rate)) * error


def by_step_s(rank: RankBreakdown, state: State) -> Floats:
    """Return the seconds of a state in each step, by the steps' numbers. [step]"""
    times = [share.by_step_ns for share in rank.shares if share.state == state]
    total_ns = np.sum(times, axis=0) if times else np.zeros(len(rank.step_ns))
    return np.asarray(total_ns[by_number(rank)] / 1e9)


def step_times_s(rank: RankBreakdown) -> Floats:
    """Return the seconds of each step, by the steps' numbers. [step]"""
    return np.asarray(np.array(rank.step_ns)[by_number(rank)] / 1e9)


def by_number(rank: RankBreakdown) -> NDArray[np.int64]:
    """Return the positions of a rank's steps in the order of their numbers; they are in that of time."""
    return np.argsort([rank.activity.steps[position].number for position in rank.chosen])


def diagnose(recording: Recording) -> list[Finding]:
    """Return the named losses, largest first; none where nothing shows beyond the noise of the steps."""
    ranks = range(len(recording.found.ranks))
    error_rate = ERROR_RATE / (3 * len(ranks) + 1)
    slowed = [
        Finding(name, rank, recording.rise_s(name, rank))
        for rank in ranks
        if (name := _explained(recording, rank)) and _shows(recording, name, rank, error_rate)
    ]
    found = [*slowed, *_others(recording, [one.rank for one in slowed], error_rate)]
    return sorted(found, key=lambda one: -one.seconds)


def _others(recording: Recording, slowed: Sequence[int], error_rate: float) -> Iterator[Finding]:
    """Yield what is longer of ranks that nothing slows down, and of the link if no rank loses anything.

    Where a rank is late or its core has less time, for gloo's threads too, communication takes longer.
    """
    ranks = [rank for rank in range(len(recording.found.ranks)) if rank not in slowed]
    found = [
        Finding(name, rank, recording.rise_s(name, rank))
        for rank in ranks
        for name in ("data_wait", "launch_sleep")
        if _shows(recording, name, rank, error_rate)
    ]
    yield from found
    if not slowed and not found and _shows(recording, "slow_link", ALL_RANKS, error_rate):
        yield Finding("slow_link", ALL_RANKS, recording.rise_s("slow_link", ALL_RANKS))


def _shows(recording: Recording, name: str, rank: int, error_rate: float) -> bool:
    differences_s = recording.differences_s(name, rank)
    return (
        middle(differences_s) >= LEAST_SHARE * recording.step_s and lower_bound(differences_s, error_rate) > 0
    )


def _explained(recording: Recording, rank: int) -> str:
    """Return why a rank's own time is longer, by what was counted; "" where nothing explains it."""
    longer_s = recording.rise_s("competing_load", rank)
    least_s = max(EXPLAINS * longer_s, LEAST_SHARE * recording.step_s)
    if recording.counted_rise(rank, "throttled_s") >= least_s:
        return "cpu_quota"
    if recording.counted_rise(rank, "waited_for_core_s") >= least_s:
        return "competing_load"
    if recording.found.ranks[rank].activity.trace.has_device:
        return ""  # the chain is that of the core which launches
    record = recording.records[rank]
    slower = column(record.injected, "chain_s") / column(record.without, "chain_s") - 1
    computing_s = by_step_s(recording.found.ranks[rank], State.COMPUTING)[0::2]
    return "slower_clock" if middle(slower * computing_s) >= least_s else ""
