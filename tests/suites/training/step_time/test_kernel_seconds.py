"""GPUs by name, and the seconds of matmuls by shape."""

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from suites.training.step_time.constants import StepConstants, best_share
from suites.training.step_time.gpu import (
    HARDWARE,
    MatmulRates,
    attention_flop,
    device_names,
    gpu_of,
    matmul_s,
)

H100 = gpu_of("h100_80gb")
SIZES = st.integers(16, 32768)
PERFECT = MatmulRates(1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", device_names())
def test_every_datasheet_is_read_and_its_gpu_reaches_a_share_of_its_rate(name):
    sheet = yaml.safe_load((HARDWARE / f"{name}.yaml").read_text())
    gpu = gpu_of(name)
    assert gpu.memory_B == float(sheet["memory_B"])
    assert gpu.matmul_FLOP_per_s.keys() == sheet.get("matmul_FLOP_per_s", {}).keys()
    for other, differs in (sheet.get("variants") or {}).items():
        assert {field: getattr(gpu_of(other), field) for field in differs} == {
            field: float(value) for field, value in differs.items()
        }
    assert 0.4 < best_share(gpu, "bf16") < 1
    assert 0.3 < StepConstants.read().matmul(gpu, "bf16").peak_share < 1


def test_a_name_may_say_what_its_memory_and_its_power_differ_in():
    weak, poor = gpu_of("h100_80gb_500w"), gpu_of("h100_96gb")
    assert (weak.power_share, weak.memory_B) == (pytest.approx(5 / 7), H100.memory_B)
    shares = [StepConstants.read().matmul(gpu, "bf16").peak_share for gpu in (weak, H100)]
    assert shares[0] < shares[1]
    assert poor.memory_B == pytest.approx(96e9)
    assert poor.memory_B_per_s < H100.memory_B_per_s
    assert gpu_of("A800-80GB").link_B_per_s < gpu_of("a100_80gb").link_B_per_s
    assert gpu_of("tpu_v5p") is None


def test_narrow_formats_double_the_rate_where_no_datasheet_lists_them():
    assert H100.peak_FLOP_per_s("fp8") == 2 * H100.peak_FLOP_per_s("bf16")
    assert gpu_of("gb300").peak_FLOP_per_s("nvfp4") == 15e15  # the datasheet's own
    with pytest.raises(KeyError, match="a100_80gb has no matmuls in fp8"):
        gpu_of("a100_80gb").peak_FLOP_per_s("fp8")


@given(SIZES, SIZES, SIZES, st.sampled_from(["bf16", "fp8", "nvfp4"]))
def test_no_matmul_is_faster_than_the_datasheet_and_seconds_grow_with_rows(rows, columns, inner, precision):
    gpu = gpu_of("b200")
    rates = StepConstants.read().matmul(gpu, precision)
    few, many = matmul_s(np.array([rows, 2 * rows]), columns, inner, gpu, rates, precision)
    assert few <= many * (1 + 1e-9)
    assert few >= 2 * rows * columns * inner / gpu.peak_FLOP_per_s(precision)
    element_B = {"bf16": 2, "fp8": 1, "nvfp4": 0.5}[precision]
    moved_B = element_B * (rows * inner + inner * columns) + 2 * rows * columns
    assert few >= moved_B / gpu.memory_B_per_s


def test_a_matmul_of_whole_tiles_runs_at_the_peak_and_one_tile_more_costs_a_wave():
    rows, columns, inner = 256 * 12, 128 * 11, 8192  # 132 tiles: one per processor
    peak_s = 2 * rows * columns * inner / H100.peak_FLOP_per_s("bf16")
    assert float(matmul_s(rows, columns, inner, H100, PERFECT)) == pytest.approx(peak_s)
    counted = PERFECT._replace(quantisation=1.0, smaller_tile=1e-3)
    one, more = (float(matmul_s(rows, width, inner, H100, counted)) for width in (columns, columns + 1))
    assert more == pytest.approx(2 * one)


def test_attention_counts_scores_and_their_product_with_values():
    # one head of 4, two tokens that see three others: 2 x 3 scores of 4 products, 2 x 4 sums of 3
    assert attention_flop(2, 3, 4, 4) == 2 * (2 * 3 * 4 + 2 * 4 * 3)
