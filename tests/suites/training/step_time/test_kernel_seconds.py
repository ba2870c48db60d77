"""GPUs by name, the seconds of matmuls by shape, and constants had again from tables made with known ones."""

import csv
import gzip

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from suites.training.step_time.calibrate import fitted
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


def test_a_name_is_a_chip_with_a_number_however_it_is_joined():
    assert [gpu_of(name).name for name in ("rtx_5090", "RTX 6000 Ada")] == ["rtx5090", "rtx6000_ada"]
    assert gpu_of("rtx_pro_6000_96gb") is None


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


A100 = gpu_of("a100_80gb")
TRUE = MatmulRates(0.7, 0.9, 0.9, 0.6, 0.5, 50.0, 6e-6)
SHAPE = {"hidden": 4096, "ffn": 11008, "heads": 32, "kv_heads": 32, "gated": True}
MATMULS = {"attn_pre_proj": (3 * 4096, 4096), "attn_post_proj": (4096, 4096),
           "mlp_up_proj": (2 * 11008, 4096), "mlp_down_proj": (4096, 11008)}  # fmt: skip


def write(path, rows):
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.DictWriter(file, sorted({key for row in rows for key in row}))
        writer.writeheader()
        writer.writerows(rows)


def operator(name, tokens, tp, seconds):
    of = {"source": "vidur", "accelerator": "a100", "operator": name, "tokens": tokens, "tp": tp}
    return {**of, "forward_ms": seconds * 1e3, **SHAPE}


def test_links_memory_and_matmuls_made_with_known_constants_give_them_back(tmp_path):
    operators = [operator("add", 8192, 1, 3 * 2 * 8192 * 4096 / (0.9 * A100.memory_B_per_s))]
    for name, (columns, inner) in MATMULS.items():
        for tp in (1, 2, 4, 8):
            size = (
                (columns, inner // tp)
                if name in ("attn_post_proj", "mlp_down_proj")
                else (columns // tp, inner)
            )
            for tokens in (256, 384, 512, 1024, 2048, 3072, 4096):
                operators.append(operator(name, tokens, tp, float(matmul_s(tokens, *size, A100, TRUE))))
    write(tmp_path / "operators.csv.gz", operators)
    nvlink = {
        "source": "vidur",
        "system": "a100_dgx",
        "operation": "all_reduce",
        "ranks": 8,
        "ranks_per_node": 8,
    }
    large_s = 2 * 7 / 8 * 64e6 / (0.7 * A100.link_B_per_s)
    line_s = 2**24 / (8 * 50e9)
    late = line_s / (line_s + 2 * 15 * 3e-5)  # 15 further nodes at 30 us, there and back
    collectives = [
        nvlink | {"bytes": 64e6, "milliseconds_median": large_s * 1e3},
        nvlink | {"bytes": 2048, "milliseconds_median": 0.04},
        {"source": "SimAI ratio", "bytes": 2**28, "system": "nic: 2Node-16GPU(NIC )", "bus_gb_s": 0.8},
        {"source": "SimAI ratio", "bytes": 2**24, "system": "nic: 16Node-128GPU(NIC)", "bus_gb_s": late},
    ]
    write(tmp_path / "collectives.csv.gz", collectives)
    found = fitted(tmp_path)
    for name, expected in (
        *(("memory_share", 0.9), ("link.node_share", 0.7), ("link.collective_s", 2e-5)),
        *(("link.infiniband_share", 0.8), ("link.network_hop_s", 3e-5)),
    ):
        assert found[name] == pytest.approx(expected), name
    share = found["matmul.ampere.typical_share"] * best_share(A100, "bf16")
    assert share == pytest.approx(TRUE.peak_share, rel=0.05)
    assert found.keys() <= StepConstants.read().keys()
