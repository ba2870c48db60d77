"""Constants of components, had again from tables that were made with known ones."""

import csv
import gzip

import pytest

from suites.training.step_time.calibrate import fit_matmul, fitted, matmuls_of, read_rows
from suites.training.step_time.constants import StepConstants, best_share
from suites.training.step_time.gpu import MatmulRates, gpu_of, matmul_s

A100 = gpu_of("a100_80gb")
TRUE = MatmulRates(0.7, 0.9, 0.9, 0.6, 0.5, 50.0, 6e-6)
SHAPE = {"hidden": 4096, "ffn": 11008, "heads": 32, "kv_heads": 32, "gated": True}


def write(path, rows):
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.DictWriter(file, sorted({key for row in rows for key in row}))
        writer.writeheader()
        writer.writerows(rows)


def operator(name, tokens, tp, seconds):
    return {
        "source": "vidur",
        "accelerator": "a100",
        "operator": name,
        "tokens": tokens,
        "tp": tp,
        "forward_ms": seconds * 1e3,
        **SHAPE,
    }


def sizes(name, tp):
    return {
        "attn_pre_proj": (3 * 4096 // tp, 4096),
        "attn_post_proj": (4096, 4096 // tp),
        "mlp_up_proj": (2 * 11008 // tp, 4096),
        "mlp_down_proj": (4096, 11008 // tp),
    }[name]


@pytest.fixture
def tables(tmp_path):
    operators = [
        operator(name, tokens, tp, float(matmul_s(tokens, *sizes(name, tp), A100, TRUE)))
        for name in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
        for tokens in (256, 384, 512, 1024, 2048, 3072, 4096)
        for tp in (1, 2, 4, 8)
    ]
    operators += [operator("add", 8192, 1, 3 * 2 * 8192 * 4096 / (0.9 * A100.memory_B_per_s))]
    write(tmp_path / "operators.csv.gz", operators)
    nvlink = {
        "source": "vidur",
        "system": "a100_dgx",
        "operation": "all_reduce",
        "ranks": 8,
        "ranks_per_node": 8,
    }
    large = 2 * 7 / 8 * 64e6 / (0.7 * A100.link_B_per_s)
    collectives = [
        nvlink | {"bytes": 64e6, "milliseconds_median": large * 1e3},
        nvlink | {"bytes": 2048, "milliseconds_median": 0.04},
    ]
    simai = {"source": "SimAI ratio", "bus_gb_s": 0.8, "bytes": 2**28}
    collectives += [simai | {"system": "nic: 2Node-16GPU(NIC )"}]
    line_s = 2**24 / (8 * 50e9)
    late = line_s / (line_s + 2 * 15 * 3e-5)  # 15 further nodes at 30 us, there and back
    collectives += [simai | {"bytes": 2**24, "system": "nic: 16Node-128GPU(NIC)", "bus_gb_s": late}]
    write(tmp_path / "collectives.csv.gz", collectives)
    return tmp_path


def test_matmuls_made_with_known_constants_give_them_back(tables):
    measured = matmuls_of(read_rows(tables / "operators.csv.gz"), "a100")
    rates, error = fit_matmul(measured, A100)
    assert len(measured.rows) == 4 * 7 * 4
    assert error < 0.02
    assert rates.peak_share == pytest.approx(TRUE.peak_share, rel=0.05)
    assert rates.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.5)


def test_links_and_memory_made_with_known_constants_give_them_back(tables):
    found = fitted(tables)
    assert found["memory_share"] == pytest.approx(0.9)
    assert found["link.node_share"] == pytest.approx(0.7)
    assert found["link.collective_s"] == pytest.approx(2e-5)
    assert found["link.infiniband_share"] == pytest.approx(0.8)
    assert found["link.network_hop_s"] == pytest.approx(3e-5)
    share = found["matmul.ampere.typical_share"] * best_share(A100, "bf16")
    assert share == pytest.approx(TRUE.peak_share, rel=0.05)


def test_every_constant_that_is_fitted_has_a_place(tables):
    assert fitted(tables).keys() <= StepConstants.read().keys()
