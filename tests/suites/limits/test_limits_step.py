"""The seconds of a step by part, compared with sums done by hand; what must hold for any layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.run import load
from suites.seconds.formula import (
    Model,
    ParallelLayout,
    StepTime,
    layout_of,
    model_of,
    published_time,
    step_time,
    tokens_of,
    utilization,
)
from suites.seconds.workload import LimitsWorkload

RUN = load(["suite=limits"])[0]
GPT3 = LimitsWorkload(**RUN.workloads["gpt3_512"])
LLAMA = LimitsWorkload(**RUN.workloads["llama_405b_512"])
FLOP_PER_S, BYTES_PER_S = 0.6 * 1979e12, 0.6 * 3.35e12


def parts(work: LimitsWorkload) -> dict[str, float]:
    return {name: float(value[0]) for name, value in published_time(work)._asdict().items()}


def test_parameters_and_flop_are_those_that_the_models_authors_publish() -> None:
    """174.6 B (arXiv 2005.14165, table D.1); 405 B; 2.17e16 FLOP per sequence by NVIDIA/dgxc-benchmarking."""
    assert model_of(GPT3).matmul_parameters == pytest.approx(174.6e9, rel=2e-3)
    assert model_of(LLAMA).matmul_parameters + 128256 * 16384 == pytest.approx(405.85e9, rel=1e-3)
    whole_attention = 6 * 126 * 8192 * 16384 * 8192
    assert model_of(LLAMA).flop(8192) + whole_attention == pytest.approx(2.17e16, rel=0.01)


def test_the_parts_of_gpt_3_on_512_gpus() -> None:
    """128 micro-batches of 2,048 tokens, 12 layers of 12 * 12288^2 parameters on each of 4 ranks."""
    found = parts(GPT3)
    layer = 12 * 12288**2
    matmul = 128 * 3 * 2 * 2048 * (12 * layer + 51200 * 12288) / 4 / FLOP_PER_S
    assert found["matmul_s"] == pytest.approx(matmul)
    attention = 128 * 12 * 3.5 * 2 * 2048 * 2048 * 12288 / 4 / 265e12
    assert found["attention_s"] == pytest.approx(attention)
    assert found["pointwise_s"] == pytest.approx(128 * 12 * 4 * 34 * 12288 * 2048 / 4 / BYTES_PER_S)
    # Megatron's four sums per layer, each of 2 * 3/4 of 2,048 x 12,288 elements of 2 bytes.
    assert found["tensor_s"] == pytest.approx(128 * 12 * 4 * 2 * 0.75 * 2048 * 12288 * 2 / 450e9)
    assert found["pipeline_s"] == pytest.approx(128 * 24 * 2048 * 12288 / 4 * 2 / 50e9)
    rank = (96 * layer + 51200 * 12288) / 8 / 4
    near, nodes = 2, 8  # data-parallel ranks are 4 GPUs apart: two of them share a node
    data = rank * 4 * ((near - 1) / near / 450e9 + 1 / near * (nodes - 1) / nodes / 50e9)
    assert found["data_s"] == pytest.approx(data)
    assert found["context_s"] == found["expert_s"] == 0


def test_nothing_hidden_is_the_sum_and_all_hidden_the_longer() -> None:
    found = parts(GPT3)
    compute = sum(found[f"{name}_s"] for name in ("matmul", "attention", "pointwise"))
    moved = sum(found[f"{name}_s"] for name in ("tensor", "context", "expert", "pipeline"))
    data_latency = 2 * (6.8e-6 + 0.6e-6 + 3 * 5e-6)
    steady = compute + moved + found["latency_s"] - data_latency
    assert found["bubble_s"] == pytest.approx(steady / 128 * 7 / 12)
    total = steady + found["bubble_s"] + found["data_s"] + data_latency
    assert found["total_s"] == pytest.approx(total)
    hidden = parts(replace(GPT3, overlap=1.0))
    steady = compute + found["latency_s"] - data_latency
    assert compute > moved
    assert hidden["total_s"] == pytest.approx(steady * (1 + 7 / 12 / 128) + data_latency)


def test_embedding_and_loss_in_place_of_layers_leave_every_rank_alike() -> None:
    """16 layers' work on each of 8 stages, and no head at the end of the last."""
    found = parts(LLAMA)
    layer = 16384 * (16384 + 2 * 1024 + 16384 + 3 * 53248)
    assert found["matmul_s"] == pytest.approx(288 * 16 * 3 * 2 * 4096 * layer / 8 / FLOP_PER_S)
    # Keys and values of 8 heads of 128, from the other of 2 ranks: gathered twice, reduced once.
    kv = 2 * 1024 * 8192 / 8 * 2
    assert found["context_s"] == pytest.approx(288 * 16 * 3 * kv / 2 / 50e9)


def test_utilization_is_flop_over_what_the_gpus_could_do() -> None:
    assert tokens_of(GPT3) == 2048 * 2048
    flop = 2048 * 2048 * (6 * model_of(GPT3).matmul_parameters + 6 * 96 * 2048 * 12288)
    assert utilization(GPT3, 11.07) == pytest.approx(flop / 11.07 / 512 / 1979e12)


def test_a_small_matmul_takes_its_bytes_or_its_start() -> None:
    """One token: weights are read; with a long start that counts, four times forward and eight backward."""
    model = Model(1, 4096, 3 * 4096, 4 * 4096, 4 * 4096, 0, 1)
    layout = ParallelLayout(*(np.ones(1) for _ in ParallelLayout._fields))
    work = LimitsWorkload(kernel_s=0.0)
    read = 12 * 4096**2 + (4 + 12) * 4096 * 2
    assert step_time(work, model, layout, 1.0).matmul_s[0] == pytest.approx(3 * read / BYTES_PER_S)
    slow = replace(work, kernel_s=1e-3)
    assert step_time(slow, model, layout, 1.0).matmul_s[0] == pytest.approx(12e-3)


def test_experts_are_read_sent_and_reduced_by_the_ranks_that_share_them() -> None:
    """64 experts, 8 per token, over 8 of 16 data-parallel ranks, a GPU per node."""
    h, tokens = 1024.0, 16 * 4096.0
    model = Model(2, h, 3 * h, 4 * h, 4 * h, 0, 4096, sparsity=8, experts_per_token=8)
    layout = ParallelLayout(*(np.array([float(size)]) for size in (1, 1, 1, 16, 1, 8, 1, 1)))
    work = LimitsWorkload(node_size=1, collective_s=0, node_hop_s=0, network_hop_s=0)
    found = step_time(work, model, layout, tokens)
    assert found.expert_s[0] == pytest.approx(2 * 4 * 4096 * 8 * h * 2 * 7 / 8 / 50e9)
    attention, experts = 4 * h * h, 8 * h * h * 8 / 8
    assert found.data_s[0] == pytest.approx(2 * 4 * (attention * 15 / 16 + experts / 2) / 50e9)
    dense = step_time(
        work, model._replace(sparsity=1, experts_per_token=1), layout._replace(ep=np.ones(1)), tokens
    )
    assert found.attention_s[0] == dense.attention_s[0]
    assert found.matmul_s[0] == pytest.approx(dense.matmul_s[0])  # as many FLOP per token


sizes = st.integers(0, 4).map(lambda power: 2.0**power)
layouts = st.builds(
    lambda *given: ParallelLayout(*(np.array([one]) for one in given)),
    sizes, sizes, st.just(1.0), sizes, sizes, st.just(1.0), sizes, sizes,
)  # fmt: skip
overlaps = st.sampled_from([0.0, 0.3, 1.0])
MODEL = Model(32, 8192, 3 * 8192, 4 * 8192, 4 * 8192, 0, 2048)
TOKENS = 2.0**22


def seconds(layout: ParallelLayout, model: Model = MODEL, tokens: float = TOKENS, **inputs: float) -> float:
    return float(step_time(replace(LimitsWorkload(), **inputs), model, layout, tokens).total_s[0])


@given(layouts, overlaps, st.floats(1, 50))
@pytest.mark.parametrize(
    "field",
    ["peak_FLOP_per_s", "memory_B_per_s", "attention_FLOP_per_s", "node_link_B_per_s", "network_B_per_s"],
)
def test_a_faster_part_never_makes_a_step_longer(
    field: str, layout: ParallelLayout, overlap: float, factor: float
) -> None:
    faster = getattr(LimitsWorkload(), field) * factor
    assert seconds(layout, overlap=overlap, **{field: faster}) <= seconds(layout, overlap=overlap) * (
        1 + 1e-12
    )


@given(layouts, overlaps, st.floats(1, 50))
@pytest.mark.parametrize(
    "field", ["kernel_s", "collective_s", "node_hop_s", "network_hop_s", "pointwise_passes", "gradient_B"]
)
def test_more_latency_or_bytes_never_make_a_step_shorter(
    field: str, layout: ParallelLayout, overlap: float, factor: float
) -> None:
    more = getattr(LimitsWorkload(), field) * factor
    assert seconds(layout, overlap=overlap, **{field: more}) >= seconds(layout, overlap=overlap) * (1 - 1e-12)


@given(layouts, st.floats(0, 1), st.floats(0, 1))
def test_more_overlap_never_makes_a_step_longer(layout: ParallelLayout, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert seconds(layout, overlap=more) <= seconds(layout, overlap=less) * (1 + 1e-12)


@given(layouts, overlaps)
def test_a_step_is_no_shorter_than_its_matmuls_on_all_gpus(layout: ParallelLayout, overlap: float) -> None:
    least = 6 * MODEL.matmul_parameters * TOKENS / (float(layout.gpus[0]) * FLOP_PER_S)
    assert seconds(layout, overlap=overlap) >= least


@given(layouts, overlaps, st.floats(0.1, 10))
def test_seconds_are_seconds(layout: ParallelLayout, overlap: float, unit: float) -> None:
    """A clock that counts in other units of time counts every part alike."""
    rates = (
        "peak_FLOP_per_s",
        "memory_B_per_s",
        "attention_FLOP_per_s",
        "node_link_B_per_s",
        "network_B_per_s",
    )
    latencies = ("kernel_s", "collective_s", "node_hop_s", "network_hop_s")
    inputs = {name: getattr(LimitsWorkload(), name) / unit for name in rates}
    inputs |= {name: getattr(LimitsWorkload(), name) * unit for name in latencies}
    assert seconds(layout, overlap=overlap, **inputs) == pytest.approx(
        unit * seconds(layout, overlap=overlap)
    )


@given(layouts, overlaps, st.floats(0.1, 10))
def test_bytes_are_bytes(layout: ParallelLayout, overlap: float, unit: float) -> None:
    inputs = {
        name: getattr(LimitsWorkload(), name) * unit
        for name in ("memory_B_per_s", "node_link_B_per_s", "network_B_per_s")
    }
    inputs |= {
        name: getattr(LimitsWorkload(), name) * unit
        for name in ("weight_B", "activation_B", "gradient_B", "gathered_B", "kept_B")
    }
    assert seconds(layout, overlap=overlap, **inputs) == pytest.approx(seconds(layout, overlap=overlap))


@given(layouts, overlaps)
def test_layouts_are_independent_of_one_another(layout: ParallelLayout, overlap: float) -> None:
    """What is calculated for many layouts at once is what each alone gives."""
    work = replace(LimitsWorkload(), overlap=overlap)
    twice = ParallelLayout(*(np.concatenate([one, 2 * np.ones(1)]) for one in layout))
    many = step_time(work, MODEL, twice, TOKENS)
    alone = step_time(work, MODEL, layout, TOKENS)
    assert all(float(one[0]) == float(other[0]) for one, other in zip(many, alone, strict=True))


def test_the_parts_are_named_once() -> None:
    assert StepTime._fields[-1] == "total_s"
    assert layout_of(GPT3).gpus[0] == GPT3.gpus == 512
