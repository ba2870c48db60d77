"""Which data-parallel group gets which item: costs of documents, four assignments, and the bound of a step.

A step takes as long as its slowest group. Sizes: items N, groups G. Costs are in any unit; here in FLOP.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suites.training.balance.differencing import karmarkar_karp

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
