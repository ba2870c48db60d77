"""Which rank the others depend on at each time of a step: the critical path over ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.traces.breakdown import Breakdown
from harness.instruments.traces.segments import State


class PathPart(NamedTuple):
    """A time in which one rank is on the critical path; `rank` is its position, times are aligned."""

    rank: int
    start_ns: int
    end_ns: int


def critical_path(of: Breakdown, step: int) -> tuple[PathPart, ...]:
    """Return the critical path of a step (by its place among `of.step_numbers`), in order of time.

    It starts with the rank that ends last and goes back in time. Where that rank waits for another, the path
    goes on with the other one from the end of the wait.
    """
    edges = [_edges(of, rank, step) for rank in range(len(of.ranks))]
    waits = [_waits_at(of, rank, step) for rank in range(len(of.ranks))]
    rank = max(range(len(of.ranks)), key=lambda one: edges[one][1])
    at_ns, found = edges[rank][1], []
    position = {one.rank: i for i, one in enumerate(of.ranks)}
    while True:
        earlier = [wait for wait in waits[rank] if wait[0] <= at_ns and wait[1] in position]
        start_ns = max((wait[0] for wait in earlier), default=edges[rank][0])
        if start_ns < at_ns:
            found.append(PathPart(rank, start_ns, at_ns))
        if not earlier:
            return tuple(reversed(found))
        at_ns, slower = max(earlier)
        waits[rank] = [wait for wait in earlier if wait[0] < at_ns]
        rank = position[slower]


def _edges(of: Breakdown, rank: int, step: int) -> tuple[int, int]:
    one = of.ranks[rank]
    chosen = one.activity.steps[one.chosen[step]]
    offset_ns = of.matching.offsets_ns[rank]
    return chosen.start_ns - offset_ns, chosen.end_ns - offset_ns


def _waits_at(of: Breakdown, rank: int, step: int) -> list[tuple[int, int]]:
    """Return when each wait of a rank in the step ends, and for which rank it waited."""
    one = of.ranks[rank]
    cut = one.segments
    chosen = (cut.step == one.chosen[step]) & (cut.state == State.WAITING_FOR_RANK)
    ends_ns = cut.end_ns[chosen] - of.matching.offsets_ns[rank]
    return list(zip(ends_ns.tolist(), np.asarray(cut.slower_rank[chosen]).tolist(), strict=True))
