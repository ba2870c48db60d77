"""Find where a peak crosses a limit, in few evaluations, each of which costs seconds.

Every answer is verified on both sides. Where the peak is not monotone there may be other crossings: the one
found is correct, but need not be the first. Callers that search twice should cache their function.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from math import isfinite
from typing import NamedTuple

PATIENCE = 3
"""Guesses that may fail to halve the bracket before one is taken from its middle."""


class Crossing(NamedTuple):
    """Where a batch takes the requested bytes. `tokens`: None where not found; `how`: the reason or the
    method."""

    tokens: float | None
    how: str


def fewest_of(
    peak_at: Callable[[int], float],
    capacity_B: float,
    candidates: Sequence[int],
    evaluated: int | None = None,
) -> int | None:
    """Return the fewest ranks that fit among increasing `candidates`, such as divisors of a number of heads.

    `evaluated`: one whose peak costs nothing, because `peak_at` has it; the search starts there.
    """
    if not candidates:
        raise ValueError("no number of ranks to choose from")
    peak_at = cache(peak_at)
    if evaluated in candidates:
        at = candidates.index(evaluated)
        fits = peak_at(evaluated) <= capacity_B
        candidates = candidates[: at + 1] if fits else candidates[at:]
    if peak_at(candidates[0]) <= capacity_B:
        return candidates[0]
    if peak_at(candidates[-1]) > capacity_B:
        return None
    return _cross(peak_at, capacity_B, candidates, lambda ranks: 1 / ranks)[1]


def tokens_at(
    peak_at_batch: Callable[[int], float],
    target_B: float,
    seq_len: int,
    upper: int,
    peak_at_length: Callable[[int], float] | None = None,
) -> Crossing:
    """Return how many tokens in a batch make the peak `target_B`.

    `peak_at_batch(batch)`: bytes with `batch` sequences of `seq_len` tokens, for `batch` from 1 to `upper`.
    Between the last batch that takes no more and the first that takes more, the number of sequences is
    interpolated linearly, so that it may be a fraction. Where one sequence already takes more, it is
    shortened: `peak_at_length(length)` gives the peak of `length` tokens; without it nothing is found.
    Assumes that a larger batch and a longer sequence never take less.
    """
    peak_at_batch = cache(peak_at_batch)
    if peak_at_batch(1) <= target_B:
        if peak_at_batch(upper) <= target_B:
            return Crossing(None, f"{upper} sequences of {seq_len} tokens still take no more")
        low, high, at = _between(peak_at_batch, target_B, upper)
        return Crossing(at * seq_len, f"between {low} and {high} sequences of {seq_len} tokens")
    if peak_at_length is None:
        return Crossing(None, f"one sequence of {seq_len} tokens already takes more")
    peak_at_length = cache(peak_at_length)
    if peak_at_length(1) > target_B:
        return Crossing(None, "one token already takes more")
    low, high, at = _between(peak_at_length, target_B, seq_len)
    return Crossing(at, f"one sequence, shortened to between {low} and {high} tokens")


def _between(peak_at: Callable[[int], float], target_B: float, upper: int) -> tuple[int, int, float]:
    """Return the neighbours of `target_B`, up to `upper`, and where the line through their peaks meets it."""
    low, high = _cross(peak_at, target_B, range(1, upper + 1), float)
    low_B, high_B = peak_at(low), peak_at(high)
    return low, high, low + (target_B - low_B) / (high_B - low_B) * (high - low)


def _cross(
    peak_at: Callable[[int], float],
    limit_B: float,
    candidates: Sequence[int],
    coordinate: Callable[[float], float],
) -> tuple[int, int]:
    """Return neighbours among `candidates` with the limit between them, as between the first and the last.

    Guesses use a line through both ends of the bracket, the peak over `coordinate` (its own inverse); an end
    that stays twice has its distance halved (the Illinois method), so that curvature does not slow the
    search.
    """
    left, right = 0, len(candidates) - 1
    left_B, right_B = (peak_at(candidates[end]) - limit_B for end in (left, right))
    first_is_over = left_B > 0
    widths = [right - left]
    moved = ""
    while right - left > 1:
        index = _guess(candidates, left, right, left_B, right_B, coordinate)
        if len(widths) > PATIENCE and widths[-1] * 2 > widths[-1 - PATIENCE]:
            index = (left + right) // 2
        distance_B = peak_at(candidates[index]) - limit_B
        if (distance_B > 0) == first_is_over:
            left, left_B, right_B = index, distance_B, right_B / (2 if moved == "left" else 1)
            moved = "left"
        else:
            right, right_B, left_B = index, distance_B, left_B / (2 if moved == "right" else 1)
            moved = "right"
        widths.append(right - left)
    return candidates[left], candidates[right]


def _guess(
    candidates: Sequence[int],
    left: int,
    right: int,
    left_B: float,
    right_B: float,
    coordinate: Callable[[float], float],
) -> int:
    """Return an index strictly between `left` and `right`, where the line through both meets the limit."""
    low, high = coordinate(candidates[left]), coordinate(candidates[right])
    share = left_B / (left_B - right_B) if isfinite(left_B - right_B) and left_B != right_B else 0.5
    meets = coordinate(low + share * (high - low))
    return min(max(bisect_left(candidates, meets), left + 1), right - 1)
