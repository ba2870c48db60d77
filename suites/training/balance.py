"""Which data-parallel group gets which item: costs of documents, four assignments, and the bound of a step.

A step takes as long as its slowest group. Sizes: items N, groups G. Costs are in any unit; here in FLOP.

The largest differencing method (Karmarkar and Karp, 1982) for any number of groups.

Every item begins as a partition with one group that is not empty. The two partitions with the largest
difference between their fullest and emptiest group are combined, the fullest group of one with the emptiest
of the other, until one is left.

It is exact at any size. A partition takes single items until all of its groups have one, so about N / G pairs
of full partitions are combined, and the work is about N log N comparisons and N moves of up to G numbers
(items N, groups G). Of equal differences, older partitions come first
and single items last.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray


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


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

AssignmentMethod = Literal["in_order", "random", "greedy", "karmarkar_karp"]

LEAST_AT_ONCE = 64
"""Items for which one sort of all groups costs less than a heap."""


class DocumentCost(NamedTuple):
    """FLOP or seconds of a document of n tokens, forward and backward: linear n + quadratic n^2."""

    linear: float
    quadratic: float


def flop_of_document(
    *,
    hidden_size: int,
    num_hidden_layers: int,
    intermediate_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    vocab_size: int,
    mlp_matrices: int = 3,
    causal: bool = True,
) -> DocumentCost:
    """Return the FLOP of a transformer's training step on one document, by the formula of PaLM.

    Per token 6 N + 12 layers hidden n (Chowdhery et al., arXiv 2204.02311, appendix B), with the N parameters
    of all matrix products: projections, MLP (gated: 3 matrices, else 2) and language-model head (none with a
    vocabulary of 0), and n tokens to attend to. Causal attention needs half of its products. Attention is
    within the document alone; recomputation is left out.
    """
    keys = hidden_size // num_attention_heads * num_key_value_heads
    attention = 2 * hidden_size * hidden_size + 2 * hidden_size * keys
    layer = attention + mlp_matrices * hidden_size * intermediate_size
    parameters = num_hidden_layers * layer + vocab_size * hidden_size
    return DocumentCost(6.0 * parameters, (6.0 if causal else 12.0) * num_hidden_layers * hidden_size)


def cost(lengths: ArrayLike, linear: float, quadratic: float) -> FloatArray:
    """Return linear n + quadratic n^2 of each length n in tokens (N,)."""
    tokens = np.asarray(lengths, np.float64)
    return linear * tokens + quadratic * tokens * tokens


def loads(costs: ArrayLike, group_of: IntArray, groups: int) -> FloatArray:
    """Return the summed costs of each group (G,)."""
    return np.asarray(np.bincount(group_of, np.asarray(costs, np.float64), groups), np.float64)


def lower_bound(costs: ArrayLike, groups: int) -> float:
    """Return the cost that no assignment's slowest group goes below: the mean group, or the largest item."""
    each = np.asarray(costs, np.float64)
    return max(float(each.sum()) / groups, float(each.max(initial=0.0)))


def assign(
    costs: ArrayLike,
    groups: int,
    method: AssignmentMethod,
    seed: int = 0,
    *,
    tokens: Sequence[int] | IntArray | None = None,
    most_tokens: int | None = None,
) -> IntArray:
    """Return the group of each item (N,), by one of four methods; the same arguments give the same groups.

    - `in_order`: item i goes to group i modulo G, as loaders deal items in the order of their arrival.
    - `random`: the same after a random permutation, so that groups get equally many, or one more.
    - `greedy`: the largest item first, each to the least loaded group: exactly Graham's LPT rule.
    - `karmarkar_karp`: the largest differencing method for G groups.

    `tokens` of each item and `most_tokens` of a group are given together, for `greedy` alone: an item then
    goes to the least loaded group that has room for it. Raises ValueError for bad arguments, and where an
    item has no room left; LPT does not look for another arrangement of the items before it.
    """
    each = _checked(costs, groups, method)
    if (tokens is None) != (most_tokens is None):
        raise ValueError("tokens and most_tokens: expected both or neither")
    if tokens is not None and most_tokens is not None:
        if method != "greedy":
            raise ValueError(f"most_tokens with method {method!r}: only 'greedy' respects it")
        return _greedy_with_room(each, groups, np.asarray(tokens, np.int64), most_tokens)
    if method == "greedy":
        return _greedy(each, groups)
    if method == "karmarkar_karp":
        return karmarkar_karp(each, groups)
    order = np.arange(len(each))
    if method == "random":
        order = np.random.default_rng(seed).permutation(len(each))
    return order % groups


def _checked(costs: ArrayLike, groups: int, method: str) -> FloatArray:
    """Return the costs as an array; raises ValueError for what cannot be assigned."""
    each = np.asarray(costs, np.float64)
    if each.ndim != 1:
        raise ValueError(f"costs of shape {each.shape}: expected one per item")
    if not (np.isfinite(each).all() and (each >= 0).all()):
        wrong = int(np.argmin(np.isfinite(each) & (each >= 0)))
        raise ValueError(f"cost of item {wrong} is {each[wrong]}: expected a finite number of at least 0")
    if groups < 1:
        raise ValueError(f"groups={groups}: expected at least 1")
    if method not in get_args(AssignmentMethod):
        raise ValueError(f"method {method!r}: expected one of {', '.join(get_args(AssignmentMethod))}")
    return each


def _greedy(costs: FloatArray, groups: int) -> IntArray:
    """Return LPT's assignment.

    Several items are placed by one sort: the j-th of them goes to the group with the j-th smallest load, as
    long as no group that has just got one is less loaded than that. Where this places few, a heap does.
    """
    order = np.argsort(-costs, kind="stable")
    ordered, group_of = costs[order], np.empty(len(costs), np.int64)
    load, done = np.zeros(groups), 0
    while done < len(costs):
        rank = np.argsort(load, kind="stable")[: len(costs) - done]
        after = load[rank] + ordered[done : done + len(rank)]
        allowed = np.minimum.accumulate(after)[:-1] >= load[rank][1:]
        count = len(rank) if allowed.all() else int(np.argmin(allowed)) + 1
        if count < LEAST_AT_ONCE:
            count = len(costs) - done if groups <= LEAST_AT_ONCE else min(groups, len(costs) - done)
            group_of[order[done : done + count]] = _by_heap(ordered[done : done + count], load)
        else:
            load[rank[:count]] = after[:count]
            group_of[order[done : done + count]] = rank[:count]
        done += count
    return group_of


def _by_heap(ordered: FloatArray, load: FloatArray) -> list[int]:
    """Return the groups of items that are placed one by one; adds them to the loads."""
    heap = list(zip(load.tolist(), range(len(load)), strict=True))
    heapq.heapify(heap)
    placed = []
    for one in ordered.tolist():
        least, group = heap[0]
        placed.append(group)
        heapq.heapreplace(heap, (least + one, group))
    for now, group in heap:
        load[group] = now
    return placed


def _greedy_with_room(costs: FloatArray, groups: int, tokens: IntArray, most_tokens: int) -> IntArray:
    """Return LPT's assignment to groups that have room; raises ValueError for an item without any."""
    if tokens.shape != costs.shape or (tokens < 0).any():
        raise ValueError(f"tokens of shape {tokens.shape}: expected {len(costs)} numbers of at least 0")
    order, group_of = np.argsort(-costs, kind="stable"), np.empty(len(costs), np.int64)
    smallest_left = np.minimum.accumulate(tokens[order][::-1])[::-1].tolist()
    room = [most_tokens] * groups
    heap = [(0.0, group) for group in range(groups)]
    for place, item in enumerate(order.tolist()):
        full = []
        while heap and room[heap[0][1]] < tokens[item]:
            one = heapq.heappop(heap)
            if room[one[1]] >= smallest_left[place]:  # else no item that is left fits
                full.append(one)
        if not heap:
            raise ValueError(
                f"an item of {tokens[item]} tokens finds no room in {groups} groups of {most_tokens}: "
                f"{place} of {len(costs)} items are placed"
            )
        least, group = heap[0]
        heapq.heapreplace(heap, (least + float(costs[item]), group))
        room[group] -= int(tokens[item])
        group_of[item] = group
        for one in full:
            heapq.heappush(heap, one)
    return group_of
