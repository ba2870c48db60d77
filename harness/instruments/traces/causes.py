"""Name what is wrong with a step, only where the steps show it beyond their noise.

A cause is named where a difference is at least `least_share` of the step and its lower confidence bound over
the steps is above zero; waiting for data, which nothing is compared with, where that bound is above
`least_share`. The bound is Student's, one-sided, at `error_rate` divided by the number of candidates
(Bonferroni), so at most that share of traces without a cause gets one named. Steps that resemble their
predecessor count for less: n (1 - r) / (1 + r) of n steps, r being the correlation of neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from harness.instruments.traces.breakdown import Breakdown, RankBreakdown
from harness.instruments.traces.segments import STATE_NAMES, State

Floats = NDArray[np.float64]

LEAST_SHARE = 0.03
"""A difference below this share of the step is not named."""

ERROR_RATE = 0.01
"""Share of traces without a cause in which one is named, at most."""

OWN = (State.COMPUTING, State.COPYING, State.PREPARING, State.CALLING, State.WAITING_FOR_DATA)
"""States in which one rank can be slower than the others by itself."""

COMPARED = (*OWN, State.COMMUNICATION, State.IDLE)
"""States that are compared with those of a reference."""


class Cause(NamedTuple):
    """Something that takes time which it should not: a state, of one rank or of all (-1).

    `share` is the part of the step, `at_least` its lower confidence bound. `compared_with` says with what:
    "the other ranks", "the reference", or "" for time that no step should have.
    """

    state: State
    rank: int
    share: float
    at_least: float
    compared_with: str

    @property
    def name(self) -> str:
        """Return the cause in words."""
        if self.state == State.WAITING_FOR_RANK:
            return f"waiting for rank {self.rank}"
        of = f" of rank {self.rank}" if self.rank >= 0 else ""
        than = f" longer than with {self.compared_with}" if self.compared_with else ""
        return f"{STATE_NAMES[self.state]}{of}{than}"


def causes(
    of: Breakdown,
    reference: Breakdown | None = None,
    *,
    least_share: float = LEAST_SHARE,
    error_rate: float = ERROR_RATE,
) -> tuple[Cause, ...]:
    """Return the named causes, largest first; `reference` is the same step without the suspected cause."""
    candidates = list(_candidates(of, reference))
    found = []
    for one in candidates:
        share, bound = _lower_bound(one.excess, one.other, error_rate / len(candidates))
        least = 0.0 if one.compared_with else least_share
        if share >= least_share and bound > least:
            found.append(Cause(one.state, one.rank, share, bound, one.compared_with))
    return tuple(sorted(found, key=lambda cause: -cause.share))


class _Candidate(NamedTuple):
    """What could be a cause: its share of the mean step in each step, and what that must exceed. [step]"""

    state: State
    rank: int
    compared_with: str
    excess: Floats
    other: Floats | None = None


def _candidates(of: Breakdown, reference: Breakdown | None) -> Iterator[_Candidate]:
    data = _mean([_by_step(rank, State.WAITING_FOR_DATA) for rank in of.ranks]) / of.step_s
    yield _Candidate(State.WAITING_FOR_DATA, -1, "", data)
    if len(of.ranks) > 1:
        yield from _of_one_rank(of)
    if reference is not None:
        for state in COMPARED:
            now = _mean([_by_step(rank, state) for rank in of.ranks]) / of.step_s
            then = _mean([_by_step(rank, state) for rank in reference.ranks]) / of.step_s
            yield _Candidate(state, -1, "the reference", now, then)


def _of_one_rank(of: Breakdown) -> Iterator[_Candidate]:
    """Yield what could make one rank slower than the others, and the others' waiting for it."""
    waits = np.array([_waits_for(of, rank.rank) for rank in of.ranks]) / of.step_s
    tables = [(State.WAITING_FOR_RANK, "the other ranks", waits)]
    for state in OWN:
        table = np.array([_by_step(rank, state) for rank in of.ranks]) / of.step_s
        tables.append((state, "the other ranks", table))
    for state, compared_with, table in tables:
        if np.any(table):
            for i, rank in enumerate(of.ranks):
                others = np.delete(table, i, axis=0).mean(axis=0)
                yield _Candidate(state, rank.rank, compared_with, table[i] - others)


def _by_step(rank: RankBreakdown, state: State) -> Floats:
    """Return the seconds of a state in each step. [step]"""
    times = [share.by_step_ns for share in rank.shares if share.state == state]
    return np.sum(times, axis=0) / 1e9 if times else np.zeros(len(rank.step_ns))


def _waits_for(of: Breakdown, slower: int) -> Floats:
    """Return the seconds that the other ranks wait for one, per step, as their mean. [step]"""
    detail = f"rank {slower}"
    waits = [
        np.sum(
            [s.by_step_ns for s in rank.shares if s.state == State.WAITING_FOR_RANK and s.detail == detail], 0
        )
        / 1e9
        + np.zeros(len(rank.step_ns))
        for rank in of.ranks
        if rank.rank != slower
    ]
    return _mean(waits)


def _mean(tables: list[Floats]) -> Floats:
    return np.asarray(np.mean(tables, axis=0), np.float64)


def _lower_bound(excess: Floats, other: Floats | None, error_rate: float) -> tuple[float, float]:
    """Return the mean difference and its one-sided lower bound."""
    difference = float(excess.mean() - (0.0 if other is None else other.mean()))
    counts = [_effective(one) for one in (excess, other) if one is not None]
    if min(counts) < 2:
        return difference, -np.inf
    variances = [float(one.var(ddof=1)) for one in (excess, other) if one is not None]
    parts = [variance / count for variance, count in zip(variances, counts, strict=True)]
    error = float(np.sqrt(sum(parts)))
    if error == 0:
        return difference, difference
    freedom = sum(parts) ** 2 / sum(
        p**2 / (n - 1) for p, n in zip(parts, counts, strict=True) if p
    )  # Welch's
    return difference, difference - float(stdtrit(freedom, 1 - error_rate)) * error


def _effective(samples: Floats) -> float:
    """Return how many independent samples these are worth, at most their number."""
    count = len(samples)
    if count < 3 or samples.std() == 0:
        return float(count)
    centred = samples - samples.mean()
    r = float(np.clip(np.sum(centred[1:] * centred[:-1]) / np.sum(centred**2), 0, 0.9))
    return count * (1 - r) / (1 + r)
