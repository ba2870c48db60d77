"""The searches, compared with a scan of every value; their cost is counted in evaluations."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.memory.thresholds import PATIENCE, fewest_of, tokens_at

BYTES = st.integers(0, 10**12)
EACH = st.integers(1, 10**9)


class Counted:
    """A function of one whole number that keeps what it was asked."""

    def __init__(self, function):
        self.function, self.asked = function, []

    def __call__(self, value):
        assert value not in self.asked
        self.asked.append(value)
        return self.function(value)


def scan(peak_at, capacity_B, candidates):
    return next((n for n in candidates if peak_at(n) <= capacity_B), None)


def worst(upper):
    """Return the most evaluations: both ends, PATIENCE guesses, and one per halving."""
    return 2 + (PATIENCE + 1) * math.ceil(math.log2(upper)) if upper > 1 else 2


@given(BYTES, BYTES, st.integers(1, 10**12), st.integers(1, 3000), st.integers(1, 4000))
def test_fewest_of_a_plus_b_over_n(fixed_B, spread_B, capacity_B, upper, evaluated):
    """Among all numbers and among powers of two; a peak that is known changes no answer."""
    for step in (1, 2):
        candidates = [n for n in range(1, upper + 1) if step == 1 or n & (n - 1) == 0]
        peak_at = Counted(lambda n: fixed_B + spread_B / n)
        found = fewest_of(peak_at, capacity_B, candidates)
        assert found == scan(peak_at.function, capacity_B, candidates)
        assert len(peak_at.asked) <= 6
        assert found == fewest_of(peak_at.function, capacity_B, candidates, evaluated)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=300), st.floats(0, 1e12))
def test_any_peaks_are_verified_on_both_sides(peaks, capacity_B):
    """Nothing is assumed of the peaks here; what is found is still a true crossing."""
    found = fewest_of(lambda n: peaks[n - 1], capacity_B, range(1, len(peaks) + 1))
    if found is None:
        assert min(peaks[0], peaks[-1]) > capacity_B
    else:
        assert peaks[found - 1] <= capacity_B
        assert found == 1 or peaks[found - 2] > capacity_B


@given(BYTES, BYTES, EACH, EACH, BYTES)
def test_tokens_where_the_peak_moves(flat_B, fixed_B, small_B, large_B, target_B):
    """The peak is the largest of several places, each a line in the batch: flat, rising, steeper."""
    peak_at = Counted(lambda b: max(flat_B, fixed_B + small_B * b, fixed_B / 2 + large_B * b))
    peak = peak_at.function
    found = tokens_at(peak_at, target_B, 128, upper=1024)
    batch = next((b for b in range(1, 1024) if peak(b) <= target_B < peak(b + 1)), None)
    if batch is None:
        assert found.tokens is None
    else:
        share = (target_B - peak(batch)) / (peak(batch + 1) - peak(batch))
        assert found.tokens == pytest.approx((batch + share) * 128, rel=1e-6)
        assert f"{batch} and {batch + 1} " in found.how
    assert len(peak_at.asked) <= worst(1024)


@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(0, 1000), EACH, st.integers(1, 4096))
def test_one_sequence_is_shortened(fixed_B, linear_B, square_B, target_B, seq_len):
    """Explicit attention: quadratic in the length."""
    at_length = Counted(lambda length: fixed_B + linear_B * length + square_B * length * length)
    of_one_B = at_length.function(seq_len)
    found = tokens_at(lambda b: fixed_B + b * (of_one_B - fixed_B), target_B, seq_len, 64, at_length)
    if at_length.function(1) > target_B:
        assert found.tokens is None
        assert "one token" in found.how or seq_len == 1
    elif of_one_B > target_B:
        low = math.floor(found.tokens)
        assert at_length.function(low) <= target_B * (1 + 1e-9)
        assert at_length.function(low + 1) >= target_B * (1 - 1e-9)
        assert "shortened" in found.how
        assert len(at_length.asked) <= worst(seq_len)
