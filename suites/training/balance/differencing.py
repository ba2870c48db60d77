"""The largest differencing method (Karmarkar and Karp, 1982) for any number of groups.

Every item begins as a partition with one group that is not empty. The two partitions with the largest
difference between their fullest and emptiest group are combined, the fullest group of one with the emptiest
of the other, until one is left.

It is exact at any size. A partition takes single items until all of its groups have one, so about N / G pairs
of full partitions are combined, and the work is about N log N comparisons and N moves of up to G numbers
(items N, groups G). tests/benchmarks/test_balance.py times it. Of equal differences, older partitions come
first and single items last.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray


class _Partition:
    """Groups that are not empty: their sums in ascending order, and an item that stands for each."""

    __slots__ = ("items", "sums")

    def __init__(self, sums: list[float], items: list[int]) -> None:
        self.sums, self.items = sums, items

    def difference(self, groups: int) -> float:
        """Return the fullest group's sum less the emptiest's."""
        return self.sums[-1] - (self.sums[0] if len(self.sums) == groups else 0.0)


class _Differencing:
    """The state of one run: single items in descending order, and partitions in a heap."""

    def __init__(self, costs: NDArray[np.float64], groups: int) -> None:
        order = np.argsort(-costs, kind="stable")
        self.groups = groups
        self.single, self.item = costs[order].tolist(), order.tolist()
        self.next_single = self.serial = 0
        self.heap: list[tuple[float, int, _Partition]] = []
        self.joined = list(range(len(costs)))  # of each item, one of the same group that came before it

    def run(self) -> _Partition:
        """Combine until one partition is left."""
        first = self._take()
        while self.heap or self.next_single < len(self.single):
            if self._is_single_next():
                self._add(first, self.single[self.next_single], self.item[self.next_single])
                self.next_single += 1
            else:
                first = self._combine(first, heapq.heappop(self.heap)[2])
            self.serial += 1
            entry = (-first.difference(self.groups), self.serial, first)
            if self._is_single_next() and self.single[self.next_single] > -entry[0]:
                heapq.heappush(self.heap, entry)
                first = self._take()
            else:
                first = heapq.heappushpop(self.heap, entry)[2]
        return first

    def _is_single_next(self) -> bool:
        """Return whether a single item has the largest difference; of equal ones a partition goes first."""
        if self.next_single == len(self.single):
            return False
        return not self.heap or self.single[self.next_single] > -self.heap[0][0]

    def _take(self) -> _Partition:
        """Return the next single item as a partition."""
        at = self.next_single
        self.next_single += 1
        return _Partition([self.single[at]], [self.item[at]])

    def _add(self, partition: _Partition, one: float, item: int) -> None:
        """Add an item to the emptiest group."""
        sums, items = partition.sums, partition.items
        if len(sums) == self.groups:
            one += sums.pop(0)
            stands_for = items.pop(0)
            self.joined[item] = stands_for
            item = stands_for
        at = bisect_right(sums, one)
        sums.insert(at, one)
        items.insert(at, item)

    def _combine(self, first: _Partition, second: _Partition) -> _Partition:
        """Return both as one: the fullest group of one gets the emptiest of the other, and so on in order."""
        shared = max(0, len(first.sums) + len(second.sums) - self.groups)
        combined = [*zip(first.sums[shared:], first.items[shared:], strict=True)]
        combined += zip(second.sums[shared:], second.items[shared:], strict=True)
        for at in range(shared):
            other = shared - 1 - at
            self.joined[second.items[other]] = first.items[at]
            combined.append((first.sums[at] + second.sums[other], first.items[at]))
        combined.sort()
        return _Partition([one[0] for one in combined], [one[1] for one in combined])


def karmarkar_karp(costs: NDArray[np.float64], groups: int) -> NDArray[np.int64]:
    """Return the group of each item (N,), for finite costs of at least 0 and at least one group."""
    if not len(costs):
        return np.empty(0, np.int64)
    run = _Differencing(costs, groups)
    last = run.run()
    joined = np.array(run.joined, np.int64)
    while not np.array_equal(further := joined[joined], joined):
        joined = further
    number = np.empty(len(costs), np.int64)
    number[last.items] = np.arange(len(last.items))
    return number[joined]
