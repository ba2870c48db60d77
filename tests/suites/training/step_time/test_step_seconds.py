"""Seconds of whole steps: FLOP counted a second way, parts that add up, what must grow, and speed."""

import time
from dataclasses import replace

import numpy as np
import pytest

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import Layouts, Training
from suites.training.step_time.constants import GpuCluster, StepConstants
from suites.training.step_time.gpu import gpu_of
from suites.training.step_time.layer import experts_s
from suites.training.step_time.seconds import step_s
from suites.training.step_time.setting import RunFacts, StepSetting

SEVENTY_B = TransformerShape(
    num_hidden_layers=80,
    hidden_size=8192,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=28672,
    vocab_size=128256,
)
EXPERTS = TransformerShape(
    num_hidden_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=32000,
    num_experts=8,
    experts_per_token=2,
    moe_intermediate_size=14336,
)
NOTHING_ELSE = {
    "matmul.hopper.quantisation": 0.0,
    "matmul.hopper.inner_offset": 0.0,
    "matmul.hopper.fixed_s": 0.0,
    "megatron.pointwise_factor": 0.0,
    "megatron.accumulate_B": 0.0,
    "megatron.update_B": 0.0,
    "megatron.logit_B": 0.0,
    "megatron.layer_launch_s": 0.0,
    "step_s": 0.0,
    "attention.ramp": 0.0,
    "attention.cudnn.hopper.forward": 1.0,
    "attention.cudnn.hopper.backward": 1.0,
}
"""Constants with which a step is nothing but its FLOP at the rate of matmuls."""


def setting(shape=SEVENTY_B, program="megatron", precision="bf16", seq_len=8192, **changed):
    cluster = GpuCluster(gpu_of("h100_80gb"), 8, 50e9)
    training = Training(seq_len=seq_len, program=program, precision=precision)
    return StepSetting(shape, training, cluster, StepConstants.read(**changed))


def seconds(rows, **words):
    return step_s(setting(**words), Layouts.of(rows)).total


def test_a_step_of_nothing_but_flop_takes_the_flop_of_the_closed_count():
    given = setting(**NOTHING_ELSE)
    rate = given.gpu.peak_FLOP_per_s("bf16") * given.matmul_rates("bf16").peak_share
    tokens, hidden = 8192.0 * 4, 8192
    # Narayanan et al., arXiv 2104.04473, section 3: 6 per parameter and token, and 12 s h per layer, of which
    # causal attention needs half
    matrices = 80 * (hidden * (hidden + 2 * 1024) + hidden * hidden + 3 * hidden * 28672) + hidden * 128256
    attention = 80 * 6 * 8192 * hidden / 2 * 2 * 3.5 / 3  # flash attention's backward: 2.5 times its forward
    expected = tokens * (6 * matrices / rate + attention / given.gpu.peak_FLOP_per_s("bf16"))
    total = step_s(given, Layouts.of([{"micro_batch_size": 4}])).total[0]
    assert total == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("program", ["megatron", "nanotron", "composer", "torchtitan", "deepspeed"])
def test_parts_add_up_to_the_step(program):
    rows = [
        {"dp": 2, "tp": 4, "pp": 4, "cp": 2, "micro_batches": 16, "virtual_stages": 2, "zero": 1},
        {"dp": 64, "zero": 3, "recompute": 2, "micro_batches": 2},
        {"dp": 8, "tp": 8, "recompute": 1, "micro_batches": 4},
    ]
    step = step_s(setting(program=program), Layouts.of(rows))
    parts = step.layers.total + step.head + step.bubble + step.reduction + step.update + step.rest
    assert parts == pytest.approx(step.total)
    assert all((part >= 0).all() for part in step.layers)


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ({"tp": 8}, {"tp": 8, "recompute": 2}),
        ({"tp": 8, "micro_batches": 4}, {"tp": 8, "micro_batches": 5}),
        ({"tp": 8, "pp": 4, "micro_batches": 8, "virtual_stages": 2}, {"tp": 8, "pp": 4, "micro_batches": 8}),
        ({"dp": 64, "zero": 3, "micro_batch_size": 2}, {"dp": 64, "zero": 3, "micro_batches": 2}),
        ({"tp": 8, "pp": 2, "dp": 4, "micro_batches": 8}, {"tp": 8, "pp": 2, "dp": 512, "micro_batches": 8}),
    ],
)
def test_more_work_more_ranks_and_more_bubble_take_longer(faster, slower):
    first, second = seconds([faster, slower])
    assert first < second


def test_a_slower_network_slows_what_crosses_it():
    row = Layouts.of([{"dp": 64, "zero": 3}])
    fast = setting()
    slow = StepSetting(fast.shape, fast.training, fast.cluster._replace(network_B_per_s=2e9), fast.constants)
    assert step_s(slow, row).total[0] > 2 * step_s(fast, row).total[0]


def test_narrow_formats_are_faster_and_frozen_weights_save_a_third_of_the_matmuls():
    row = [{"tp": 8, "micro_batches": 4}]
    assert seconds(row, precision="fp8")[0] < seconds(row)[0]
    given, layouts = setting(), Layouts.of(row)
    frozen = replace(given, run=RunFacts(adapters_alone=True))
    whole = step_s(given, layouts).layers.matmul[0]
    assert step_s(frozen, layouts).layers.matmul[0] == pytest.approx(whole * 2 / 3, rel=0.05)


def test_experts_spread_over_ranks_do_the_work_of_all_of_them():
    given = setting(EXPERTS)
    alone, spread = (experts_s(given, Layouts.of([{"dp": 8, "ep": ep}]), np.array([8192.0])) for ep in (1, 8))
    # each rank has an eighth of the experts, and eight ranks' tokens for them
    assert spread.forward[0] == pytest.approx(alone.forward[0], rel=0.15)


def test_ten_thousand_layouts_take_less_than_five_seconds():
    rows = [
        {"dp": 1024 // (tp * pp * cp), "tp": tp, "pp": pp, "cp": cp, "micro_batches": m, "zero": zero}
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4, 8)
        for cp in (1, 2, 4, 8)
        for m in range(1, 80)
        for zero in (1, 3)
    ]
    layouts = Layouts.of(rows)
    start = time.perf_counter()
    total = step_s(setting(), layouts).total
    assert len(total) >= 10_000
    assert time.perf_counter() - start < 5
