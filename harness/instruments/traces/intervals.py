"""Sets of times as sorted arrays: who is busy at each instant, and how two sets overlap.

An instant belongs to the interval that started first of those that are running (of several that started
together, the longest). So any set of intervals becomes disjoint pieces, each with one owner.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.traces.trace import Ints, Mask


class OwnedTimes(NamedTuple):
    """Disjoint times in order, each with its owner: an event's position. [piece]"""

    start_ns: Ints
    end_ns: Ints
    owner: Ints

    @property
    def total_ns(self) -> int:
        """Return the sum of the lengths."""
        return int(np.sum(self.end_ns - self.start_ns))


NOTHING = OwnedTimes(*(np.zeros(0, np.int64) for _ in range(3)))


def pieces(start_ns: Ints, end_ns: Ints, owner: Ints) -> OwnedTimes:
    """Return the union of intervals as disjoint pieces, each owned by the interval that started first."""
    if not len(start_ns):
        return NOTHING
    order = np.lexsort((-end_ns, start_ns))
    start_ns, end_ns, owner = start_ns[order], end_ns[order], owner[order]
    busy_until = np.maximum.accumulate(end_ns)
    begin = np.maximum(start_ns, np.concatenate(([start_ns[0]], busy_until[:-1])))
    kept = begin < end_ns
    return OwnedTimes(begin[kept], end_ns[kept], owner[kept])


def owners(of: OwnedTimes, at_ns: Ints) -> Ints:
    """Return the owner of each instant, -1 where no piece covers it. [instant]"""
    found = np.full(len(at_ns), -1, np.int64)
    if len(of.start_ns):
        at = np.searchsorted(of.start_ns, at_ns, side="right") - 1
        inside = (at >= 0) & (of.end_ns[np.maximum(at, 0)] > at_ns)
        found[inside] = of.owner[at[inside]]
    return found


def covered_ns(of: OwnedTimes, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return for how long the pieces cover each interval. [interval]"""
    if not len(of.start_ns):
        return np.zeros(len(start_ns), np.int64)
    return _before(of, end_ns) - _before(of, start_ns)


def _before(of: OwnedTimes, at_ns: Ints) -> Ints:
    """Return how much of the pieces is before each instant."""
    total = np.concatenate(([0], np.cumsum(of.end_ns - of.start_ns)))
    at = np.searchsorted(of.start_ns, at_ns, side="right")
    last = np.maximum(at - 1, 0)
    beyond = np.where(at > 0, np.maximum(of.end_ns[last] - at_ns, 0), 0)
    return np.asarray(total[at] - beyond, np.int64)


def intersection(a: OwnedTimes, b: OwnedTimes) -> OwnedTimes:
    """Return when both sets have a piece; a piece of `a` owns it."""
    at = np.unique(np.concatenate([a.start_ns, a.end_ns, b.start_ns, b.end_ns]))
    owner = owners(a, at[:-1])
    both = (owner >= 0) & (owners(b, at[:-1]) >= 0)
    return OwnedTimes(at[:-1][both], at[1:][both], owner[both])


def covered_by_both_ns(a: OwnedTimes, b: OwnedTimes, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return for how long both sets cover each interval. [interval]"""
    return covered_ns(intersection(a, b), start_ns, end_ns)


def inside(of: OwnedTimes, at_ns: Ints) -> Mask:
    """Return which instants the pieces cover. [instant]"""
    return owners(of, at_ns) >= 0


def innermost(start_ns: Ints, end_ns: Ints, at_ns: Ints) -> Ints:
    """Return the innermost interval at each instant, of nested ones in order; -1 for none. [instant]"""
    parent = np.full(len(start_ns), -1, np.int64)
    stack: list[int] = []
    for i, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while stack and end_ns[stack[-1]] <= start:
            stack.pop()
        parent[i] = stack[-1] if stack else -1
        if end > start:
            stack.append(i)
    found = np.searchsorted(start_ns, at_ns, side="right") - 1
    while True:
        over = (found >= 0) & (end_ns[np.maximum(found, 0)] <= at_ns)
        if not over.any():
            return np.asarray(found, np.int64)
        found[over] = parent[found[over]]
