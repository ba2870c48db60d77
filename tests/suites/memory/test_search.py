"""The searches, compared with a scan of every value; their cost is counted in evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.memory.thresholds import PATIENCE, fewest_of, tokens_at


class Counted:
    """A function of one whole number that keeps what it was asked."""

    def __init__(self, function: Callable[[int], float]):
        self.function = function
        self.asked: list[int] = []

    def __call__(self, value: int) -> float:
        self.asked.append(value)
        return self.function(value)


def scan(peak_at: Callable[[int], float], capacity_B: float, candidates: list[int]) -> int | None:
    return next((n for n in candidates if peak_at(n) <= capacity_B), None)


def worst(upper: int) -> float:
    """Return the most evaluations: both ends, PATIENCE guesses, and one per halving."""
    return 2 + (PATIENCE + 1) * math.ceil(math.log2(upper)) if upper > 1 else 2


def fewest_up_to(peak_at: Callable[[int], float], capacity_B: float, upper: int) -> int | None:
    return fewest_of(peak_at, capacity_B, range(1, upper + 1))


whole = st.integers(0, 10**12)


@given(whole, whole, st.integers(1, 10**12), st.integers(1, 3000))
def test_fewest_of_a_plus_b_over_n(fixed_B: int, spread_B: int, capacity_B: int, upper: int) -> None:
    peak_at = Counted(lambda n: fixed_B + spread_B / n)
    found = fewest_up_to(peak_at, capacity_B, upper)
    assert found == scan(peak_at.function, capacity_B, list(range(1, upper + 1)))
    assert len(peak_at.asked) <= 6
    assert len(set(peak_at.asked)) == len(peak_at.asked)


@given(whole, st.integers(1, 10**9), st.integers(1, 10**6), st.integers(1, 10**12), st.integers(1, 2000))
def test_fewest_of_uneven_shards(fixed_B: int, rows: int, row_B: int, capacity_B: int, upper: int) -> None:
    """Sharded by whole rows, the largest rank holds ceil(rows / N): flat stretches, but never rising."""
    peak_at = Counted(lambda n: fixed_B + -(-rows // n) * row_B)
    found = fewest_up_to(peak_at, capacity_B, upper)
    assert found == scan(peak_at.function, capacity_B, list(range(1, upper + 1)))
    assert len(peak_at.asked) <= worst(upper)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=300), st.floats(0, 1e12))
def test_any_peaks_are_verified_on_both_sides(peaks: list[float], capacity_B: float) -> None:
    """Nothing is assumed of the peaks here; what is found is still a true crossing."""
    found = fewest_up_to(lambda n: peaks[n - 1], capacity_B, len(peaks))
    if found is None:
        assert peaks[0] > capacity_B
        assert peaks[-1] > capacity_B
    else:
        assert peaks[found - 1] <= capacity_B
        assert found == 1 or peaks[found - 2] > capacity_B


@given(whole, whole, st.integers(1, 10**12), st.integers(1, 5000))
def test_fewest_of_powers_of_two(fixed_B: int, spread_B: int, capacity_B: int, upper: int) -> None:
    peak_at = Counted(lambda n: fixed_B + spread_B / n)
    powers = [n for n in range(1, upper + 1) if n & (n - 1) == 0]
    found = fewest_of(peak_at, capacity_B, powers)
    assert found == scan(peak_at.function, capacity_B, powers)
    assert len(peak_at.asked) <= 6
    least = fewest_up_to(peak_at.function, capacity_B, upper)
    if found is not None:
        assert least is not None
        assert least <= found < 2 * least


@given(whole, whole, st.integers(1, 10**12), st.integers(1, 300), st.integers(1, 400))
def test_a_known_peak_changes_no_answer(
    fixed_B: int, spread_B: int, capacity_B: int, upper: int, evaluated: int
) -> None:
    def peak_at(ranks: int) -> float:
        return fixed_B + spread_B / ranks

    candidates = range(1, upper + 1)
    found = fewest_of(peak_at, capacity_B, candidates, evaluated)
    assert found == scan(peak_at, capacity_B, list(candidates))


def test_fewest_of_given_numbers() -> None:
    divisors = [1, 2, 3, 4, 6, 8, 12, 24]
    assert fewest_of(lambda n: 100 / n, 20, divisors) == 6
    assert fewest_of(lambda n: 100 / n, 1, divisors) is None
    assert fewest_of(lambda n: 100 / n, 100, [1]) == 1
    with pytest.raises(ValueError, match="no number"):
        fewest_of(lambda n: 1, 1, [])


def test_upper_itself_may_be_the_answer() -> None:
    assert fewest_up_to(lambda n: 100 / n, 10, 10) == 10
    assert fewest_up_to(lambda n: 100 / n, 10, 9) is None


def test_table_i_by_search() -> None:
    """With all of 40 B per parameter spread evenly, the search finds Table I's GPUs."""
    for billions, gpus in ((1, 1), (7, 4), (13, 7), (70, 35), (175, 88)):
        total_B = 40e9 * billions
        assert fewest_up_to(lambda n, total_B=total_B: total_B / n, 80e9, 1024) == gpus  # type: ignore[misc]


@given(whole, st.integers(1, 10**9), st.integers(0, 10**12), st.integers(1, 5000))
def test_tokens_on_a_line(fixed_B: int, each_B: int, target_B: int, seq_len: int) -> None:
    peak_at = Counted(lambda batch: fixed_B + each_B * batch)
    found = tokens_at(peak_at, target_B, seq_len, upper=4096)
    crossing = (target_B - fixed_B) / each_B
    if 1 <= crossing < 4096:
        assert found.tokens == pytest.approx(crossing * seq_len, rel=1e-6)
        assert f"{math.floor(crossing)} and {math.floor(crossing) + 1} " in found.how
    else:
        assert found.tokens is None
    assert len(peak_at.asked) <= 5
    assert len(set(peak_at.asked)) == len(peak_at.asked)


@given(whole, whole, st.integers(1, 10**9), st.integers(1, 10**9), st.integers(0, 10**12))
def test_tokens_where_the_peak_moves(
    flat_B: int, fixed_B: int, small_B: int, large_B: int, target_B: int
) -> None:
    """The peak is the largest of several places, each a line in the batch: flat, rising, steeper."""

    def peak(batch: int) -> float:
        return max(flat_B, fixed_B + small_B * batch, fixed_B / 2 + large_B * batch)

    peak_at = Counted(peak)
    found = tokens_at(peak_at, target_B, 128, upper=1024)
    batch = next((b for b in range(1, 1024) if peak(b) <= target_B < peak(b + 1)), None)
    if batch is None:
        assert found.tokens is None
    else:
        share = (target_B - peak(batch)) / (peak(batch + 1) - peak(batch))
        assert found.tokens == pytest.approx((batch + share) * 128, rel=1e-6)
    assert len(peak_at.asked) <= worst(1024)


@given(
    st.integers(0, 10**6),
    st.integers(1, 1000),
    st.integers(0, 1000),
    st.integers(0, 10**9),
    st.integers(1, 4096),
)
def test_one_sequence_is_shortened(
    fixed_B: int, linear_B: int, square_B: int, target_B: int, seq_len: int
) -> None:
    """Explicit attention: quadratic in the length."""

    def at_length(length: int) -> float:
        return fixed_B + linear_B * length + square_B * length * length

    asked = Counted(at_length)
    found = tokens_at(
        lambda batch: fixed_B + batch * (at_length(seq_len) - fixed_B), target_B, seq_len, 64, asked
    )
    if at_length(1) > target_B:
        assert found.tokens is None
        assert "one token" in found.how or seq_len == 1
    elif at_length(seq_len) > target_B:
        assert found.tokens is not None
        low = math.floor(found.tokens)
        assert at_length(low) <= target_B * (1 + 1e-9)
        assert at_length(low + 1) >= target_B * (1 - 1e-9)
        assert "shortened" in found.how
        assert len(asked.asked) <= worst(seq_len)


def test_without_shorter_sequences_one_sequence_is_the_least() -> None:
    found = tokens_at(lambda batch: 100.0 * batch, 50, 2048, upper=64)
    assert found.tokens is None
    assert "2048 tokens already takes more" in found.how


@pytest.mark.parametrize("target", [130, 150, 200, 280, 500, 1000, 5000])
def test_what_a_7b_model_costs(target: int) -> None:
    """Real peaks: 112 GB of states and an optimizer's copies, then activations of 25 GB per sequence."""
    peak_at = Counted(lambda batch: max(126e9, 112e9 + 25e9 * batch, 85e9 + 31e9 * batch))
    found = tokens_at(
        peak_at, target * 1e9, 4096, 65_536, peak_at_length=lambda length: 112e9 + 1500.0 * length**2
    )
    assert found.tokens is not None
    assert len(peak_at.asked) <= 8
