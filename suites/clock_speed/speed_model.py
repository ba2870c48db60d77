"""How long synchronous steps take at given speeds: closed formulas, and a walk through a schedule.

A step ends when the slowest rank has computed its part and gradients are averaged. Speeds are relative to
full speed, at which a rank computes for `work_s`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from suites.clock_speed.subject import Speeds


class Dwell(NamedTuple):
    """From `begin_s` on, until the next dwell, ranks compute at these speeds."""

    begin_s: float
    speeds: tuple[float, ...]


def dwells(how: Speeds, ranks: int, slow: float, seed: int) -> Iterator[tuple[float, ...]]:
    """Return the ranks' speeds, dwell after dwell without end.

    Alternating ranks are slow in one of every two dwells, in an order drawn at random, so that each has the
    mean speed over every two.
    """
    mean = (1 + slow) / 2
    steady = {"full": (1.0,) * ranks, "one_slow": (slow,) + (1.0,) * (ranks - 1), "steady": (mean,) * ranks}
    random = Random(seed)
    while True:
        if how.pattern != "alternating":
            yield steady[how.pattern]
            continue
        first = [random.choice((slow, 1.0)) for _ in range(1 if how.together else ranks)]
        first *= ranks if how.together else 1
        yield tuple(first)
        yield tuple(1 + slow - one for one in first)


def slowdowns(how: Speeds, ranks: int, slow: float) -> dict[str, float]:
    """Return by what factor a step without communication is longer than at full speed, by method.

    Where ranks alternate each by itself, it depends on how long a dwell is compared with a step. In long
    dwells all are fast in 1 of 2^ranks, and a step has the slow speed in the others. In short ones each
    rank's speed averages out within a step.
    """
    mean = (1 + slow) / 2
    if how.pattern == "alternating" and not how.together:
        all_fast = 0.5**ranks
        return {"long dwells": 1 / (all_fast + (1 - all_fast) * slow), "short dwells": 1 / mean}
    closed = {"full": 1.0, "one_slow": 1 / slow, "steady": 1 / mean, "alternating": 1 / mean}
    return {"closed formula": closed[how.pattern]}


def loss_as_waiting(ranks: int) -> float:
    """Return which share of a slow rank's loss, over all ranks, the others spend waiting: (N - 1) / N."""
    return (ranks - 1) / ranks


def step_ends_s(
    schedule: Sequence[Dwell], begin_s: float, work_s: Sequence[float], communication_s: float, count: int
) -> list[float]:
    """Return when each of `count` steps from `begin_s` on ends; the last dwell lasts for ever."""
    ends_s = []
    for _ in range(count):
        arrived_s = max(computed_s(schedule, rank, begin_s, work) for rank, work in enumerate(work_s))
        begin_s = arrived_s + communication_s
        ends_s.append(begin_s)
    return ends_s


def computed_s(schedule: Sequence[Dwell], rank: int, begin_s: float, work_s: float) -> float:
    """Return when a rank has done `work_s` of work that it begins at `begin_s`."""
    now_s, left_s = begin_s, work_s
    number = max(bisect_right(schedule, begin_s, key=lambda dwell: dwell.begin_s) - 1, 0)
    while number + 1 < len(schedule):
        speed, until_s = schedule[number].speeds[rank], schedule[number + 1].begin_s
        if (until_s - now_s) * speed >= left_s:
            break
        left_s -= (until_s - now_s) * speed
        now_s, number = until_s, number + 1
    return now_s + left_s / schedule[number].speeds[rank]
