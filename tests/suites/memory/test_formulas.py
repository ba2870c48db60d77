"""The closed formulas, compared with their sources' examples and independent sums."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from suites.memory.formulas import estimates, gpus
from suites.memory.subject import Subject
from suites.training.dry_run.dry_run import dry_run
from suites.training.dry_run.estimates import (
    ModelCounts,
    count,
    deepspeed_states_bytes,
    korthikanti_layer_bytes,
    zero_states_bytes,
)
from suites.training.step import Features, TrainingStep
from suites.training.techniques import build_step
from suites.training.trainer import build_model
from suites.training.workload import Workload

GB = 1e9
LLAMA_7B = ModelCounts(6_738_415_616, 131_072_000, 32, 4096, 32, 32, 11008, 32000)


def a_workload(**changes):
    fields = {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "seq_len": 2048,
    }  # fmt: skip
    return Workload(**(fields | changes))


def by_method(step, counts=LLAMA_7B, nominal=None):
    return {one.method: one for one in estimates(Subject(step, 80e9, nominal), counts)}


def a_step(ranks=1, workload=None, **features):
    given = workload or a_workload()
    tensor_ranks = {"tensor": ranks, "zero3, tensor": 4}.get(features.get("sharding", "none"), 1)
    known = Features(**({"precision": "autocast"} | features))
    return TrainingStep(given, given, 0, features=known, ranks=ranks, tensor_ranks=tensor_ranks)


def test_zero_paper_example():
    """Figure 1 of arXiv 1910.02054: 7.5 B parameters, 64 ranks."""
    found = [zero_states_bytes(7.5e9, stage, 64) / GB for stage in range(4)]
    assert [round(x, 1) for x in found] == [120.0, 31.4, 16.6, 1.9]


def test_table_i():
    for billions, paper_gb, paper_gpus in ((1, 40, 1), (7, 280, 4), (13, 520, 7), (175, 7000, 88)):
        peak_B = by_method(a_step(), nominal=billions * 1e9)["rule_40x"].peak_B
        assert round(peak_B / GB) == paper_gb
        assert gpus(peak_B) == paper_gpus


def test_korthikanti_is_the_sum_of_what_its_section_4_1_lists():
    """Tensor by tensor, in bytes: attention 11sbh + 5as²b, MLP 19sbh, two LayerNorms 4sbh."""
    s, b, h, a = 640, 3, 768, 12
    attention = 2 * s * b * h + 4 * s * b * h + 2 * s * b * h + 2 * s * b * h + s * b * h
    scores = 2 * a * s * s * b + a * s * s * b + 2 * a * s * s * b
    mlp = 2 * s * b * h + 8 * s * b * h + 8 * s * b * h + s * b * h
    norms = 2 * (2 * s * b * h)
    assert korthikanti_layer_bytes(s, b, h, a, "all") == pytest.approx(attention + scores + mlp + norms)
    assert korthikanti_layer_bytes(s, b, h, a, "no_scores") == attention + mlp + norms
    assert korthikanti_layer_bytes(s, b, h, a, "input") == 2 * s * b * h


def test_states_by_convention_and_sharding():
    p = LLAMA_7B.parameters
    for (sharding, ranks), (of_16, of_18) in {
        ("none", 1): (16 * p, 18 * p),
        ("zero1", 8): (p * Fraction(11, 2), p * Fraction(15, 2)),
        ("zero2", 8): (p * Fraction(15, 4), None),
        ("zero3", 8): (p * 2, None),
        ("tensor", 8): (p * 2, p * Fraction(9, 4)),
        ("zero3, tensor", 32): (p * Fraction(1, 2), None),
    }.items():
        found = by_method(a_step(ranks, sharding=sharding))
        assert found["states_16"].peak_B == pytest.approx(float(of_16))
        assert found["states_18"].peak_B == (None if of_18 is None else pytest.approx(float(of_18)))


def test_korthikanti_adds_activations_to_the_states():
    states_B = 16 * LLAMA_7B.parameters
    work = a_workload(micro_batch_size=4, seq_len=4096)
    for features, activations_gb in (
        ({}, 416.6),
        ({"attention": "sdpa"}, 73.0),
        ({"recompute": "full"}, 4.3),
    ):
        peak_B = by_method(a_step(workload=work, **features))["korthikanti"].peak_B
        assert round((peak_B - states_B) / GB, 1) == activations_gb
    for ranks, sharding, t in ((8, "tensor", 8), (32, "zero3, tensor", 4)):
        per_layer = 4096 * 4 * 4096 * (10 + 24 / t) + 5 * 32 * 4096 * 4096 * 4 / t
        found = by_method(a_step(ranks, work, sharding=sharding))["korthikanti"].peak_B
        assert found == pytest.approx(states_B / ranks + 32 * per_layer)
    for features, kept in (({}, "all"), ({"recompute": "full"}, "input")):  # equation 4; 2sbhL/t of section 5
        step = a_step(32, work, sharding="zero3, tensor", sequence_parallel=True, **features)
        layer_B = korthikanti_layer_bytes(4096, 4, 4096, 32, kept)
        expected_B = states_B / 32 + 32 * layer_B / 4
        assert by_method(step)["korthikanti"].peak_B == pytest.approx(expected_B)


def test_deepspeeds_estimators_are_its_code_and_near_its_documentation():
    """Docs: 2851M parameters, largest layer 32M, 8 GPUs. The documentation's 15.93 GB of stage 2 is
    4P + 16P/N; the code, which is reported, returns 2P + 18P/N. Only the number of GPUs matters."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as theirs

    p = 2_851_000_000
    assert deepspeed_states_bytes(3, p, 32_000_000, 8) / 2**30 == pytest.approx(6.10, abs=0.02)
    assert deepspeed_states_bytes(2, p, 32_000_000, 8) == pytest.approx(2 * p + 18 * p / 8)
    for nodes, each in ((1, 8), (2, 4), (8, 1)):
        _, gpu_B, _ = theirs(10**9, 10**7, each, nodes, False, False)
        assert gpu_B == deepspeed_states_bytes(3, 10**9, 10**7, 8)
    with pytest.raises(ValueError, match="stage 1"):
        deepspeed_states_bytes(1, 1, 1, 1)


def test_where_each_method_declines():
    """A figure where the source speaks of such a step, else None and a sentence."""
    states = {"states_16", "korthikanti"}
    expected = {
        "none": states | {"rule_40x", "states_18", "deepspeed_zero2", "deepspeed_zero3"},
        "zero1": states | {"states_18"},
        "zero2": states | {"deepspeed"},
        "zero3": states | {"rule_40x", "deepspeed"},
        "tensor": states | {"rule_40x", "states_18"},
        "zero3, tensor": states | {"rule_40x"},
        "by expert": {"rule_40x"},  # which no formula knows
    }
    for sharding, methods in expected.items():
        found = by_method(a_step(1 if sharding == "none" else 4, sharding=sharding))
        assert {m for m, one in found.items() if one.peak_B is not None} == methods, sharding
        assert all(one.reason for one in found.values() if one.peak_B is None)
    assert by_method(a_step(attention="sdpa"))["megatron"].peak_B is not None
    sgd = a_step(4, a_workload(optimizer="sgd_momentum"), sharding="zero3", attention="sdpa")
    assert all(one.peak_B is None and one.reason for one in by_method(sgd).values())


@pytest.mark.parametrize(
    ("precision", "micro_batches", "held"),
    [("fp32", 1, 16), ("autocast", 1, 16), ("autocast", 2, 18), ("bf16_grads", 2, 16), ("fp32_grads", 1, 18)],
)
def test_formulas_are_compared_where_a_step_holds_the_bytes_that_they_count(precision, micro_batches, held):
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


TECHNIQUES = [
    ("lora", "adapters alone", ""),
    ("bf16_states", "this step's are bf16", ""),
    ("optimizer_in_backward", "all gradients at once", ""),
    ({"loss": {"chunks": 8}}, "", "logits of all tokens"),
    ("float8", "", "float8"),
]


@pytest.mark.parametrize(("technique", "states", "activations"), TECHNIQUES, ids=str)
def test_what_a_technique_does_that_formulas_do_not_count_is_named(technique, states, activations):
    further = [] if technique == "bf16_states" else ["mixed_precision"]
    found = by_method(build_step(a_workload(), ["attention", *further, technique]))
    assert states in found["states_16"].reason
    assert bool(found["states_16"].reason) == bool(states)
    for method in ("korthikanti", "megatron"):
        assert states in found[method].reason
        assert activations in found[method].reason


def test_count_agrees_with_deepspeeds_own():
    """With one tensor for embedding and head, also on the meta device, where data_ptr() is 0 for all."""
    from deepspeed.runtime.zero.stage3 import model_to_params

    step = build_step(a_workload(num_hidden_layers=3, hidden_size=64, intermediate_size=24, vocab_size=50,
                                 tie_word_embeddings=True), [])  # fmt: skip
    real, counts = build_model(step), count(build_model(step), step.workload)
    assert (counts.parameters, counts.largest_layer) == model_to_params(real)
    assert counts.parameters == step.workload.shape.parameters
    with torch.device("meta"):
        assert count(build_model(step), step.workload) == counts
