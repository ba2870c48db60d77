"""The seconds of a step by part, compared with sums done by hand; what must hold for any layout."""

from dataclasses import replace

import numpy as np
import pytest

from harness.config.run import load
from suites.seconds.formula import (
    Model,
    ParallelLayout,
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


def parts(work):
    return {name: float(value[0]) for name, value in published_time(work)._asdict().items()}


def test_parameters_and_flop_are_those_that_the_models_authors_publish():
    """174.6 B (arXiv 2005.14165, table D.1); 405 B; 2.17e16 FLOP per sequence by NVIDIA/dgxc-benchmarking."""
    assert model_of(GPT3).matmul_parameters == pytest.approx(174.6e9, rel=2e-3)
    assert model_of(LLAMA).matmul_parameters + 128256 * 16384 == pytest.approx(405.85e9, rel=1e-3)
    whole_attention = 6 * 126 * 8192 * 16384 * 8192
    assert model_of(LLAMA).flop(8192) + whole_attention == pytest.approx(2.17e16, rel=0.01)
    assert layout_of(GPT3).gpus[0] == GPT3.gpus == 512
    assert tokens_of(GPT3) == 2048 * 2048
    flop = 2048 * 2048 * (6 * model_of(GPT3).matmul_parameters + 6 * 96 * 2048 * 12288)
    assert utilization(GPT3, 11.07) == pytest.approx(flop / 11.07 / 512 / 1979e12)


def test_the_parts_of_gpt_3_on_512_gpus():
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


def test_nothing_hidden_is_the_sum_and_all_hidden_the_longer():
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


def test_experts_are_read_sent_and_reduced_by_the_ranks_that_share_them():
    """64 experts, 8 per token, over 8 of 16 data-parallel ranks, a GPU per node."""
    h, tokens = 1024.0, 16 * 4096.0
    model = Model(2, h, 3 * h, 4 * h, 4 * h, 0, 4096, sparsity=8, experts_per_token=8)
    layout = ParallelLayout(*(np.array([float(size)]) for size in (1, 1, 1, 16, 1, 8, 1, 1)))
    work = LimitsWorkload(node_size=1, collective_s=0, node_hop_s=0, network_hop_s=0)
    found = step_time(work, model, layout, tokens)
    assert found.expert_s[0] == pytest.approx(2 * 4 * 4096 * 8 * h * 2 * 7 / 8 / 50e9)
    attention, experts = 4 * h * h, 8 * h * h * 8 / 8
    assert found.data_s[0] == pytest.approx(2 * 4 * (attention * 15 / 16 + experts / 2) / 50e9)
    one_expert = model._replace(sparsity=1, experts_per_token=1)
    dense = step_time(work, one_expert, layout._replace(ep=np.ones(1)), tokens)
    assert found.attention_s[0] == dense.attention_s[0]
    assert found.matmul_s[0] == pytest.approx(dense.matmul_s[0])  # as many FLOP per token


def test_a_small_matmul_takes_its_bytes_or_its_start():
    """One token: weights are read; with a long start that counts, four times forward and eight backward."""
    model = Model(1, 4096, 3 * 4096, 4 * 4096, 4 * 4096, 0, 1)
    layout = ParallelLayout(*(np.ones(1) for _ in ParallelLayout._fields))
    read_B = 12 * 4096**2 + (4 + 12) * 4096 * 2
    for kernel_s, expected_s in ((0.0, 3 * read_B / BYTES_PER_S), (1e-3, 12e-3)):
        found = step_time(LimitsWorkload(kernel_s=kernel_s), model, layout, 1.0)
        assert found.matmul_s[0] == pytest.approx(expected_s)


def test_llama_3_has_its_ends_in_place_of_layers_and_gathers_keys_and_values():
    """16 layers' work on each of 8 stages, and no head at the end of the last."""
    found = parts(LLAMA)
    layer = 16384 * (16384 + 2 * 1024 + 16384 + 3 * 53248)
    assert found["matmul_s"] == pytest.approx(288 * 16 * 3 * 2 * 4096 * layer / 8 / FLOP_PER_S)
    # Keys and values of 8 heads of 128, from the other of 2 ranks: gathered twice, reduced once.
    keys_and_values_B = 2 * 1024 * 8192 / 8 * 2
    assert found["context_s"] == pytest.approx(288 * 16 * 3 * keys_and_values_B / 2 / 50e9)
