"""The closed formulas, compared with their sources' examples and independent sums."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from suites.memory.formulas import STAGES, MemoryEstimate, estimates, gpus
from suites.memory.subject import Subject
from suites.training.dry_run.dry_run import dry_run
from suites.training.dry_run.estimates import (
    ModelCounts,
    count,
    deepspeed_states_bytes,
    korthikanti_layer_bytes,
    megatron_activations_bytes,
    zero_states_bytes,
)
from suites.training.step import Features, TrainingStep
from suites.training.techniques import build_step
from suites.training.trainer import build_model
from suites.training.workload import Workload

GB = 1e9
LLAMA_7B = ModelCounts(6_738_415_616, 131_072_000, 32, 4096, 32, 32, 11008, 32000)


def a_workload(**changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "seq_len": 2048,
    }  # fmt: skip
    return Workload(**(fields | changes))


def by_method(
    step: TrainingStep, counts: ModelCounts = LLAMA_7B, nominal: float | None = None
) -> dict[str, MemoryEstimate]:
    found = list(estimates(Subject(step, 80e9, nominal), counts))
    assert len({one.method for one in found}) == len(found)
    return {one.method: one for one in found}


def a_step(ranks: int = 1, workload: Workload | None = None, **features: str) -> TrainingStep:
    given = workload or a_workload()
    tensor_ranks = {"tensor": ranks, "zero3, tensor": 4}.get(features.get("sharding", "none"), 1)
    known = Features(**({"precision": "autocast"} | features))
    return TrainingStep(given, given, 0, features=known, ranks=ranks, tensor_ranks=tensor_ranks)


def test_with_hybrid_sharding_states_are_spread_over_one_group() -> None:
    hybrid = build_step(a_workload(dp_size=64), [{"fsdp2": {"shard_within": 4}}])
    found, whole = by_method(hybrid), by_method(a_step())
    assert whole["states_16"].peak_B is not None
    assert found["states_16"].peak_B == whole["states_16"].peak_B / 4
    assert found["rule_40x"].peak_B is None
    assert "replicated on each rank" in found["rule_40x"].reason


def test_a_sharding_that_is_new_to_the_formulas_has_no_value() -> None:
    found = by_method(a_step(sharding="by expert"))
    assert found["states_16"].peak_B is None
    assert "does not know how 'by expert' shards; it knows none, ddp, zero1" in found["states_16"].reason


def test_zero_paper_example() -> None:
    """Figure 1 of arXiv 1910.02054: 7.5 B parameters, 64 ranks."""
    found = [zero_states_bytes(7.5e9, stage, 64) / GB for stage in range(4)]
    assert [round(x, 1) for x in found] == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize(
    ("billions", "paper_gb", "paper_gpus"),
    [(1, 40, 1), (7, 280, 4), (13, 520, 7), (70, 2800, 35), (175, 7000, 88)],
)
def test_table_i(billions: int, paper_gb: int, paper_gpus: int) -> None:
    peak_B = by_method(a_step(), nominal=billions * 1e9)["rule_40x"].peak_B
    assert peak_B is not None
    assert round(peak_B / GB) == paper_gb
    assert gpus(peak_B) == paper_gpus


@pytest.mark.parametrize(
    ("seq_len", "batch", "all_gb", "no_scores_gb", "input_gb"),
    [(2048, 1, 30.6, 9.1, 0.5), (4096, 1, 104.2, 18.3, 1.1), (4096, 4, 416.6, 73.0, 4.3)],
)
def test_korthikanti_7b(
    seq_len: int, batch: int, all_gb: float, no_scores_gb: float, input_gb: float
) -> None:
    found = [
        32 * korthikanti_layer_bytes(seq_len, batch, 4096, 32, kept) / GB
        for kept in ("all", "no_scores", "input")
    ]
    assert [round(x, 1) for x in found] == [all_gb, no_scores_gb, input_gb]


def test_korthikanti_is_the_sum_of_what_its_section_4_1_lists() -> None:
    """Tensor by tensor, in bytes: attention 11sbh + 5as²b, MLP 19sbh, two LayerNorms 4sbh."""
    s, b, h, a = 640, 3, 768, 12
    attention = (
        2 * s * b * h + 4 * s * b * h + 2 * a * s * s * b + a * s * s * b + 2 * a * s * s * b + 2 * s * b * h
    )
    attention += 2 * s * b * h + s * b * h
    mlp = 2 * s * b * h + 8 * s * b * h + 8 * s * b * h + s * b * h
    norms = 2 * (2 * s * b * h)
    assert korthikanti_layer_bytes(s, b, h, a, "all") == pytest.approx(attention + mlp + norms)


def test_megatron_activations_equal_korthikanti_where_both_speak() -> None:
    """With an MLP of 4h both give 34sbh a layer; Megatron adds the embedding and the output."""
    counts = replace(LLAMA_7B, intermediate_size=4 * 4096)
    layers_B = 32 * korthikanti_layer_bytes(2048, 2, 4096, 32, "no_scores")
    ends = 2048 * 2 * (8 + 4096 + 4 * 4096 + 4 * 32000)
    assert megatron_activations_bytes(2048, 2, counts) == pytest.approx(layers_B + ends)


def test_states_by_convention_and_sharding() -> None:
    p = LLAMA_7B.parameters
    cases = {
        ("none", 1): (16 * p, 18 * p),
        ("zero1", 8): (p * Fraction(11, 2), p * Fraction(15, 2)),
        ("zero2", 8): (p * Fraction(15, 4), None),
        ("zero3", 8): (p * 2, None),
        ("tensor", 8): (p * 2, p * Fraction(9, 4)),
        ("zero3, tensor", 32): (p * Fraction(1, 2), None),
    }
    for (sharding, ranks), (of_16, of_18) in cases.items():
        found = by_method(a_step(ranks, sharding=sharding))
        assert found["states_16"].peak_B == pytest.approx(float(of_16))
        assert found["states_18"].peak_B == (None if of_18 is None else pytest.approx(float(of_18)))


def test_korthikanti_adds_activations_to_the_states() -> None:
    states_B = 16 * LLAMA_7B.parameters
    work = a_workload(micro_batch_size=4, seq_len=4096)
    for features, activations_gb in (
        ({}, 416.6),
        ({"attention": "sdpa"}, 73.0),
        ({"recompute": "selective"}, 73.0),
        ({"recompute": "full"}, 4.3),
        ({"attention": "sdpa", "recompute": "full"}, 4.3),
    ):
        peak_B = by_method(a_step(workload=work, **features))["korthikanti"].peak_B
        assert peak_B is not None
        assert round((peak_B - states_B) / GB, 1) == activations_gb
    tensor, mesh = (
        by_method(a_step(ranks, work, sharding=sharding))["korthikanti"].peak_B
        for ranks, sharding in ((8, "tensor"), (32, "zero3, tensor"))
    )
    sbh = 4096 * 4 * 4096
    per_layer = sbh * (10 + 24 / 8) + 5 * 32 * 4096 * 4096 * 4 / 8
    assert tensor == pytest.approx(states_B / 8 + 32 * per_layer)
    per_layer = sbh * (10 + 24 / 4) + 5 * 32 * 4096 * 4096 * 4 / 4
    assert mesh == pytest.approx(states_B / 32 + 32 * per_layer)


@pytest.mark.parametrize(
    ("features", "kept"),
    [({}, "all"), ({"attention": "sdpa"}, "no_scores"), ({"recompute": "full"}, "input")],
)
def test_sequence_parallelism_divides_all_of_a_layer(features: dict[str, str], kept: str) -> None:
    """Equation 4 of arXiv 2205.05198, and 2sbhL/t of its section 5."""
    step = a_step(32, sharding="zero3, tensor", **features)
    step = replace(step, features=replace(step.features, sequence_parallel=True))
    layer_B = korthikanti_layer_bytes(2048, 1, 4096, 32, kept)
    expected_B = 16 * LLAMA_7B.parameters / 32 + 32 * layer_B / 4
    assert by_method(step)["korthikanti"].peak_B == pytest.approx(expected_B)


def test_megatrons_estimator_needs_sequence_parallelism_with_tensor_parallelism() -> None:
    step = a_step(8, sharding="tensor", attention="sdpa")
    assert by_method(step)["megatron"].peak_B is None
    step = replace(step, features=replace(step.features, sequence_parallel=True))
    expected_B = (18 * LLAMA_7B.parameters + megatron_activations_bytes(2048, 1, LLAMA_7B)) / 8
    assert by_method(step)["megatron"].peak_B == pytest.approx(expected_B)


@pytest.mark.parametrize(
    ("ranks", "published_gib"), [(8, 6.10)], ids=["docs: 2851M parameters, largest layer 32M, 8 GPUs"]
)
def test_deepspeed_stage_3_sample_of_its_documentation(ranks: int, published_gib: float) -> None:
    """Documentation prints whole millions of the real counts, so the last digit may differ."""
    found = deepspeed_states_bytes(3, 2_851_000_000, 32_000_000, ranks)
    assert found / 2**30 == pytest.approx(published_gib, abs=0.02)


def test_deepspeed_stage_2_code_is_not_its_documentation() -> None:
    """The documentation's 15.93 GB is 4P + 16P/N; the code, which is reported, returns 2P + 18P/N."""
    p = 2_851_000_000
    assert (4 * p + 16 * p / 8) / 2**30 == pytest.approx(15.93, abs=0.01)
    assert deepspeed_states_bytes(2, p, 32_000_000, 8) == pytest.approx(2 * p + 18 * p / 8)


def test_deepspeed_cares_for_the_number_of_gpus_alone() -> None:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as theirs

    for nodes, each in ((1, 8), (2, 4), (8, 1)):
        _, gpu_B, _ = theirs(10**9, 10**7, each, nodes, False, False)
        assert gpu_B == deepspeed_states_bytes(3, 10**9, 10**7, 8)
    with pytest.raises(ValueError, match="stage 1"):
        deepspeed_states_bytes(1, 1, 1, 1)


def test_where_each_method_declines() -> None:
    """A figure where the source speaks of such a step, else None and a sentence."""
    expected = {
        "none": {"rule_40x", "states_16", "states_18", "korthikanti", "deepspeed_zero2", "deepspeed_zero3"},
        "zero1": {"states_16", "states_18", "korthikanti"},
        "zero2": {"states_16", "korthikanti", "deepspeed"},
        "zero3": {"rule_40x", "states_16", "korthikanti", "deepspeed"},
        "tensor": {"rule_40x", "states_16", "states_18", "korthikanti"},
        "zero3, tensor": {"rule_40x", "states_16", "korthikanti"},
    }
    for sharding, methods in expected.items():
        found = by_method(a_step(1 if sharding == "none" else 4, sharding=sharding))
        assert {m for m, one in found.items() if one.peak_B is not None} == methods
        assert all(one.reason for one in found.values() if one.peak_B is None)
    flash = by_method(a_step(attention="sdpa"))
    assert flash["megatron"].peak_B is not None


def test_formulas_for_adam_give_no_value_for_sgd() -> None:
    for sharding in STAGES:
        found = by_method(
            a_step(4, a_workload(optimizer="sgd_momentum"), sharding=sharding, attention="sdpa")
        )
        assert all(one.peak_B is None and one.reason for one in found.values())
        assert "sgd_momentum" in found["states_16"].reason


def test_broken_assumptions_are_named() -> None:
    found = by_method(a_step(precision="fp32"), replace(LLAMA_7B, num_key_value_heads=8))
    assert "fp32" in found["korthikanti"].reason
    assert "8" in found["korthikanti"].reason
    assert "11008" in found["korthikanti"].reason
    assert found["states_16"].reason == ""
    gpt = by_method(a_step(precision="bf16_grads"), replace(LLAMA_7B, intermediate_size=4 * 4096))
    assert gpt["korthikanti"].reason == ""
    assert "residual stream in fp32" in by_method(a_step())["korthikanti"].reason


@pytest.mark.parametrize(
    ("precision", "micro_batches", "held"),
    [("fp32", 1, 16), ("autocast", 1, 16), ("autocast", 2, 18), ("bf16_grads", 2, 16), ("fp32_grads", 1, 18)],
)
def test_formulas_are_compared_where_a_step_holds_the_bytes_that_they_count(
    precision: str, micro_batches: int, held: int
) -> None:
    """By the dry run of a step of so few tokens that states alone make its peak."""
    settings = {"bf16_grads": "bf16", "fp32_grads": "fp32", "autocast": None}
    techniques = [] if precision == "fp32" else [{"mixed_precision": {"gradients": settings[precision]}}]
    workload = a_workload(
        num_hidden_layers=4, hidden_size=512, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=2048, vocab_size=64, seq_len=2, max_position_embeddings=2,
        gradient_accumulation_steps=micro_batches, optimizer_impl="fused", max_grad_norm=None,
    )  # fmt: skip
    step = build_step(workload, ["attention", *techniques])
    parameters = sum(one.numel() for one in build_model(step).parameters())
    assert dry_run(step).peak_B / parameters == pytest.approx(held, abs=0.6)
    found = by_method(step, replace(LLAMA_7B, intermediate_size=4 * 4096))
    of_states = {16: "states_16", 18: "states_18"}
    assert "B/param" not in found[of_states[held]].reason
    assert f"this step holds {held}" in found[of_states[34 - held]].reason


@pytest.mark.parametrize(
    ("technique", "states", "activations"),
    [
        ("lora", "adapters alone", ""),
        ("llama_adapter", "adapters alone", ""),
        ("bf16_states", "this step's are bf16", ""),
        ("optimizer_in_backward", "all gradients at once", ""),
        ({"loss": {"chunks": 8}}, "", "logits of all tokens"),
        ({"activation_checkpointing": {"mode": "per_op"}}, "", "this step's is per_op"),
        ("float8", "", "float8"),
    ],
    ids=str,
)
def test_what_a_technique_does_that_formulas_do_not_count_is_named(
    technique: Any, states: str, activations: str
) -> None:
    further = [] if technique == "bf16_states" else ["mixed_precision"]
    found = by_method(build_step(a_workload(), ["attention", *further, technique]))
    assert states in found["states_16"].reason
    assert bool(found["states_16"].reason) == bool(states)
    for method in ("korthikanti", "megatron"):
        assert states in found[method].reason
        assert activations in found[method].reason


def test_formulas_for_adam_give_no_value_for_8_bit_states() -> None:
    found = by_method(build_step(a_workload(), [{"optimizer": {"name": "adamw_8bit"}}]))
    assert found["states_16"].peak_B is None
    assert "adamw_8bit" in found["states_16"].reason


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 24), nn.Linear(24, 8)) for _ in range(3))
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight


def test_count_agrees_with_deepspeeds_own() -> None:
    from deepspeed.runtime.zero.stage3 import model_to_params

    real = Tied()
    assert model_to_params(real) == (50 * 8 + 3 * (8 * 24 + 24 + 24 * 8 + 8), 50 * 8)
    counts = count(real, a_workload())
    assert (counts.parameters, counts.largest_layer) == model_to_params(real)
    with torch.device("meta"):
        hollow = count(Tied(), a_workload())
    # A module's assignment of a shared parameter holds on the meta device too, where data_ptr() is 0 for all.
    assert hollow == counts
    assert (counts.num_hidden_layers, counts.hidden_size, counts.vocab_size) == (32, 4096, 32000)


sizes = st.integers(1, 4096)


@given(st.integers(1, 10**12), st.integers(1, 4096))
def test_zero_stages_only_lessen_and_reach_everything_over_n(parameters: int, ranks: int) -> None:
    found = [zero_states_bytes(parameters, stage, ranks) for stage in range(4)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(found))
    assert found[3] * ranks == pytest.approx(16 * parameters)
    assert zero_states_bytes(parameters, 2, 1) == pytest.approx(found[0])


@given(sizes, st.integers(1, 64), sizes, st.integers(1, 128), st.integers(1, 64))
def test_korthikanti_falls_with_each_way_of_saving(s: int, b: int, h: int, a: int, t: int) -> None:
    everything, no_scores, only_input = (
        korthikanti_layer_bytes(s, b, h, a, kept, t) for kept in ("all", "no_scores", "input")
    )
    assert only_input < no_scores < everything <= korthikanti_layer_bytes(s, b, h, a, "all")
    assert korthikanti_layer_bytes(s, 2 * b, h, a, "all", t) == pytest.approx(2 * everything)
    if t == 1:
        assert everything == pytest.approx(s * b * h * (34 + Fraction(5 * a * s, h)))
        assert no_scores == 34 * s * b * h


@given(st.integers(0, 10**13), st.integers(1, 10**11))
def test_gpus_are_enough_and_one_less_is_not(peak_B: int, capacity_B: int) -> None:
    n = gpus(peak_B, capacity_B)
    assert n * capacity_B >= peak_B * (1 - 1e-12)
    assert n == 1 or (n - 1) * capacity_B < peak_B


@given(st.sampled_from([2, 3]), st.integers(10**6, 10**12), st.integers(1, 10**6), st.integers(1, 512))
def test_deepspeed_never_rises_with_ranks(stage: int, parameters: int, largest: int, ranks: int) -> None:
    one = deepspeed_states_bytes(stage, parameters, largest, ranks)
    assert deepspeed_states_bytes(stage, parameters, largest, ranks + 1) <= one
    assert one >= zero_states_bytes(parameters, stage, ranks) - 1
