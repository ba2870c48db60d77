"""Seconds of matmuls by shape, against rates that nothing exceeds and against one another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.training.step_time.constants import StepConstants
from suites.training.step_time.gpu import MatmulRates, attention_flop, gpu_of, matmul_s

H100 = gpu_of("h100_80gb")
SIZES = st.integers(16, 32768)
PERFECT = MatmulRates(1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)


@given(SIZES, SIZES, SIZES)
def test_no_matmul_is_faster_than_the_datasheet(rows, columns, inner):
    seconds = float(matmul_s(rows, columns, inner, H100, StepConstants.read().matmul(H100, "bf16")))
    moved_B = 2 * (rows * columns + rows * inner + inner * columns)
    assert seconds >= 2 * rows * columns * inner / H100.peak_FLOP_per_s("bf16")
    assert seconds >= moved_B / H100.memory_B_per_s


def test_a_matmul_of_whole_tiles_runs_at_the_peak_if_nothing_is_lost():
    rows, columns, inner = 256 * 12, 128 * 11, 8192  # 132 tiles: one per processor
    seconds = float(matmul_s(rows, columns, inner, H100, PERFECT))
    assert seconds == pytest.approx(2 * rows * columns * inner / H100.peak_FLOP_per_s("bf16"))


def test_one_tile_more_than_a_wave_costs_a_wave_where_waves_count_in_full():
    counted = PERFECT._replace(quantisation=1.0, smaller_tile=1e-3)
    one = float(matmul_s(256 * 12, 128 * 11, 8192, H100, counted))
    more = float(matmul_s(256 * 12, 128 * 11 + 1, 8192, H100, counted))
    assert more == pytest.approx(2 * one)


@given(SIZES, SIZES, SIZES, st.sampled_from(["bf16", "fp8", "nvfp4"]))
def test_seconds_grow_with_rows(rows, columns, inner, precision):
    gpu = gpu_of("b200")
    rates = StepConstants.read().matmul(gpu, precision)
    few, many = matmul_s(np.array([rows, 2 * rows]), columns, inner, gpu, rates, precision)
    assert few <= many * (1 + 1e-9)


def test_attention_counts_scores_and_their_product_with_values():
    # one head of 4, two tokens that see three others: 2 x 3 scores of 4 products, 2 x 4 sums of 3
    assert attention_flop(2, 3, 4, 4) == 2 * (2 * 3 * 4 + 2 * 4 * 3)
