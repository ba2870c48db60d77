"""The closed account of layouts against other formulas, a model's parameters and dry runs of a step."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch

from harness.instruments.transformer import TransformerShape
from suites.training import techniques
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.dry_run.estimates import interleaving_penalty, korthikanti_layer_bytes
from suites.training.layouts.account import peak_of_rank, worst_peak
from suites.training.layouts.kept import kept_of_layer
from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.states import all_layers_of, parameters_of, passes_in_flight, passes_of_stage
from suites.training.models.model import Transformer
from suites.training.workload import Workload

GPT = TransformerShape(
    num_hidden_layers=8, hidden_size=64, num_attention_heads=8, num_key_value_heads=8, head_dim=8,
    intermediate_size=256, vocab_size=1024, gated=False, layer_norm=True, learned_positions=128,
    qkv_bias=True, attention_output_bias=True, mlp_bias=True, expert_bias=True, dropout=0.1,
)  # fmt: skip
TRAINING = Training(seq_len=128)
FIRST = np.array([0])


def one(**row: int) -> Layouts:
    return Layouts.of([{"micro_batch_size": 3, "sequence_parallel": 0, **row}])


def parameters(shape: TransformerShape, layout: Layouts, rank: int = 0) -> float:
    ranks = np.array([rank])
    return float(parameters_of(shape, layout, all_layers_of(shape, layout, TRAINING, ranks), ranks).all[0])


@pytest.mark.parametrize(("ranks", "sequence_parallel"), [(1, 0), (2, 0), (4, 0), (2, 1), (4, 1)])
@pytest.mark.parametrize(
    ("attention", "recompute", "kept"),
    [("fused", 0, "no_scores"), ("unfused", 0, "all"), ("unfused", 1, "no_scores")],
)
def test_a_layer_keeps_what_korthikanti_says(ranks, sequence_parallel, attention, recompute, kept):
    layout = one(tp=ranks, sequence_parallel=sequence_parallel, recompute=recompute)
    expected_B = korthikanti_layer_bytes(128, 3, 64, 8, kept, ranks, bool(sequence_parallel))
    sums_B = 4 * 128 * 3 * 8 / ranks if attention == "fused" else 0
    found = kept_of_layer(GPT, layout, replace(TRAINING, attention=attention))
    assert found.dense[0] == pytest.approx(expected_B + sums_B)


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": True},
     {"bias": False, "norm": "rms", "mlp": "swiglu", "position": "rotary"}, {"num_key_value_heads": 2}],
    ids=str,
)  # fmt: skip
def test_one_rank_has_the_models_parameters(changes: dict[str, Any]):
    workload = replace(
        Workload(
            num_hidden_layers=8, hidden_size=64, num_attention_heads=8, num_key_value_heads=8,
            intermediate_size=256, vocab_size=1024, seq_len=128, norm="layer", mlp="gelu",
            position="learned", bias=True,
        ),
        **changes,
    )  # fmt: skip
    with torch.device("meta"):
        model = Transformer(workload.shape)
    shape = replace(
        GPT,
        num_key_value_heads=workload.num_key_value_heads,
        gated=workload.mlp == "swiglu",
        layer_norm=workload.norm == "layer",
        **dict.fromkeys(("qkv_bias", "attention_output_bias", "mlp_bias"), workload.bias),
        learned_positions=128 if workload.position == "learned" else 0,
        tie_word_embeddings=workload.tie_word_embeddings,
    )
    assert parameters(shape, one()) == sum(each.numel() for each in model.parameters())


def test_ranks_share_the_parameters_and_pad_the_vocabulary():
    shape = replace(GPT, vocab_size=1000)
    whole = parameters(shape, one())
    assert sum(parameters(shape, one(pp=4), rank) for rank in range(4)) == whole
    replicated = 64 * 128 + 8 * (2 * 2 * 64 + 2 * 64) + 2 * 64  # positions, norms and two biases per layer
    assert 2 * parameters(shape, one(tp=2)) == whole + replicated


MOE = replace(GPT, num_experts=8, experts_per_token=2, moe_intermediate_size=32, shared_intermediate_size=64,
              moe_layers=(False, False, *[True] * 6))  # fmt: skip


def test_ranks_share_experts_and_copies_of_them_are_sharded():
    layout, whole = one(dp=8, ep=4, etp=1), one(dp=8)
    ranks = np.array([0])
    shared, experts, _ = parameters_of(MOE, layout, all_layers_of(MOE, layout, TRAINING, ranks), ranks)
    all_shared, all_experts, _ = parameters_of(MOE, whole, all_layers_of(MOE, whole, TRAINING, ranks), ranks)
    assert shared[0] == all_shared[0]
    assert 4 * experts[0] == all_experts[0] == 6 * 8 * MOE.expert_parameters
    assert shared[0] + all_experts[0] == MOE.parameters + 24 * 0  # vocabulary of 1,024: no padding
    zero1 = one(dp=8, ep=4, etp=1, zero=1)
    states_B = peak_of_rank(MOE, zero1, TRAINING, ranks).states[0]
    assert states_B == pytest.approx(shared[0] * (6 + 12 / 8) + experts[0] * (6 + 12 / 2))


@pytest.mark.parametrize(("ranks", "each"), [(2, 1), (4, 1), (2, 2), (4, 2), (2, 4)])
def test_the_first_stage_keeps_as_many_passes_as_the_paper_says(ranks, each):
    layout = one(pp=ranks, virtual_stages=each, micro_batches=16)
    layers = passes_in_flight(layout, FIRST)[0] * 8 / (ranks * each)
    assert layers == pytest.approx(8 * interleaving_penalty(ranks, each))
    assert passes_in_flight(layout, FIRST + ranks - 1) < passes_in_flight(layout, FIRST)
    few = one(pp=ranks, virtual_stages=each, micro_batches=ranks)
    assert passes_in_flight(few, FIRST) <= ranks * each


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("micro_batches", [4, 8, 16])
def test_passes_of_stages_are_those_of_a_schedule_that_is_stepped_through(rank, micro_batches):
    """Forward passes go through the stages in groups of as many micro-batches as there are ranks."""
    layout = one(pp=4, virtual_stages=3, micro_batches=micro_batches)
    order = [stage for _ in range(micro_batches // 4) for stage in range(3) for _ in range(4)]
    waiting = order[: 2 * (4 - rank - 1) + 2 * 4 + 1]
    for stage in range(3):
        assert passes_of_stage(layout, np.array([rank]), stage)[0] == waiting.count(stage)


@pytest.mark.parametrize("program", ["megatron", "nanotron", "torchtitan"])
@pytest.mark.parametrize(("pp", "virtual_stages"), [(1, 1), (3, 1), (8, 1), (4, 2), (2, 5)])
def test_every_layer_is_on_one_stage(program, pp, virtual_stages):
    shape = replace(MOE, num_hidden_layers=24, moe_layers=(False,) * 5 + (True,) * 19)
    layout, training = one(pp=pp, virtual_stages=virtual_stages), replace(TRAINING, program=program)
    of = [all_layers_of(shape, layout, training, np.array([rank])) for rank in range(pp)]
    assert sum(float(layers.dense[0]) for layers in of) == 5
    assert sum(float(layers.moe[0]) for layers in of) == 19


def test_layouts_at_once_are_as_layouts_one_by_one():
    rows = [{"dp": 4, "tp": tp, "pp": pp, "recompute": recompute, "zero": 1, "micro_batches": 8}
            for tp in (1, 2, 4) for pp in (1, 2, 4) for recompute in (0, 1, 2)]  # fmt: skip
    together = worst_peak(GPT, Layouts.of(rows), TRAINING)
    for index, row in enumerate(rows):
        alone = worst_peak(GPT, Layouts.of([row]), TRAINING)
        assert [each[0] for each in alone] == pytest.approx([each[index] for each in together])


def test_the_rank_that_takes_the_most_is_found():
    layout = one(pp=4, micro_batches=8)
    assert worst_peak(replace(GPT, vocab_size=128), layout, TRAINING).stage[0] == 0
    assert worst_peak(replace(GPT, vocab_size=200_000), layout, TRAINING).stage[0] == 3


@pytest.mark.parametrize(
    "fields", [{"tp": 2}, {"zero": 1, "dp": 4}, {"recompute": 2}, {"cp": 2}, {"pp": 2}], ids=str
)
def test_what_spreads_or_recomputes_takes_less(fields):
    assert worst_peak(GPT, one(**fields), TRAINING).total_B[0] < worst_peak(GPT, one(), TRAINING).total_B[0]


KEEP = {"fsdp2": {"reshard_after_forward": False}}
PIPELINE = {"pp_size": 2, "num_hidden_layers": 16, "dp_size": 4, "gradient_accumulation_steps": 4}

STEPS: list[tuple[dict[str, int], list[Any], dict[str, int]]] = [
    ({}, [], {}),
    ({"micro_batch_size": 4}, ["activation_checkpointing"], {"recompute": 2}),
    ({"num_key_value_heads": 16, "vocab_size": 32000}, [], {}),
    ({"vocab_size": 32000, "micro_batch_size": 2}, ["activation_checkpointing"], {"recompute": 2}),
    ({"micro_batch_size": 4}, [{"activation_checkpointing": {"mode": "per_op"}}], {"recompute": 1}),
    ({"seq_len": 512, "dp_size": 2}, ["activation_checkpointing"], {"recompute": 2}),
    ({"seq_len": 512, "dp_size": 4, "vocab_size": 32000}, [], {}),
    ({}, [KEEP], {"zero": 2}),
    (
        {"vocab_size": 32000, "micro_batch_size": 2},
        [KEEP, "activation_checkpointing"],
        {"recompute": 2, "zero": 2},
    ),
    ({**PIPELINE, "vocab_size": 32000}, ["pipeline", "fsdp2"], {"pp": 2, "micro_batches": 4}),
    (
        PIPELINE,
        ["pipeline", "fsdp2", "activation_checkpointing"],
        {"pp": 2, "micro_batches": 4, "recompute": 2},
    ),
]


def predicted_and_dry_B(
    sizes: dict[str, Any], recipe: list[Any], fields: dict[str, int]
) -> tuple[float, float]:
    """Return the peak of a step of torchtitan's kind by account, with even routing, and by its dry run."""
    workload = Workload(**{
        "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 8192, "vocab_size": 128256, "seq_len": 4096, "dp_size": 8,
        "optimizer_impl": "fused", **sizes,
    })  # fmt: skip
    listed = [*recipe, "mixed_precision", {"attention": {"kernel": "flash"}}]
    run = dry_run(techniques.build_step(asdict(workload), listed, 0), Device("cuda", architecture="hopper"))
    shape = TransformerShape(
        num_hidden_layers=workload.num_hidden_layers, hidden_size=2048, num_attention_heads=16, head_dim=128,
        intermediate_size=8192, num_key_value_heads=workload.num_key_value_heads,
        vocab_size=workload.vocab_size, num_experts=workload.num_experts or 0,
        experts_per_token=workload.num_experts_per_tok,
        moe_intermediate_size=workload.moe_intermediate_size or 0,
        shared_intermediate_size=workload.shared_expert_intermediate_size or 0,
    )  # fmt: skip
    row = {"dp": workload.dp_size, "zero": 3, "micro_batch_size": workload.micro_batch_size, **fields}
    training = Training(seq_len=workload.seq_len, program="torchtitan", attention="flash", imbalance=1.0)
    assert run.allocated_B is not None
    return float(worst_peak(shape, Layouts.of([row]), training).total_B[0]), run.allocated_B


@pytest.mark.parametrize(("sizes", "recipe", "fields"), STEPS, ids=str)
def test_fsdp2_takes_what_the_dry_run_of_the_same_step_takes(sizes, recipe, fields):
    """Within 1 %: the dry run traces torch's own operations, the account adds up tensors."""
    sharding = [] if {"fsdp2", "pipeline"} & {str(one) for one in recipe} or KEEP in recipe else ["fsdp2"]
    predicted_B, dry_B = predicted_and_dry_B(sizes, [*sharding, *recipe], fields)
    short = sizes.get("seq_len", 4096) < 4096  # gradients decide: the account has all of a layer's at once
    assert predicted_B == pytest.approx(dry_B, rel=0.05 if short else 0.01)


SEQUENCE = {"tensor_parallel": {"sequence_parallel": True}}
WHOLE = {"expert_parallel": {"expert_tensor_parallel": False}}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 2048, "ep_size": 4,
           "vocab_size": 32000, "micro_batch_size": 2}  # fmt: skip
SPREAD = {"dp_size": 4, "tp_size": 2}

MIXTURES: list[tuple[dict[str, int], list[Any], dict[str, int]]] = [
    ({**SPREAD, "vocab_size": 32000, "micro_batch_size": 2}, [SEQUENCE], {"tp": 2}),
    ({**SPREAD, "vocab_size": 128256}, ["tensor_parallel"], {"tp": 2, "sequence_parallel": 0}),
    ({**EXPERTS, "shared_expert_intermediate_size": 2048}, ["expert_parallel"], {"ep": 4}),
    ({**EXPERTS, **SPREAD, "ep_size": 1}, [SEQUENCE], {"tp": 2, "etp": 2}),
    ({**EXPERTS, **SPREAD}, ["expert_parallel", SEQUENCE], {"tp": 2, "ep": 4, "etp": 2}),
    (
        {**EXPERTS, **SPREAD, "tp_size": 4, "shared_expert_intermediate_size": 2048},
        ["expert_parallel", SEQUENCE],
        {"tp": 4, "ep": 4, "etp": 4},
    ),
    (
        {**EXPERTS, **SPREAD},
        ["expert_parallel", "tensor_parallel"],
        {"tp": 2, "ep": 4, "etp": 2, "sequence_parallel": 0},
    ),
    ({**EXPERTS, **SPREAD, "ep_size": 8}, [WHOLE, SEQUENCE], {"tp": 2, "ep": 8}),
    (
        {**EXPERTS, **SPREAD, "ep_size": 8, "num_hidden_layers": 8, "num_experts": 64,
         "num_experts_per_tok": 6, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1024},
        [WHOLE, SEQUENCE],
        {"tp": 2, "ep": 8},
    ),
    (
        {**EXPERTS, **SPREAD, "micro_batch_size": 4},
        ["expert_parallel", SEQUENCE, "activation_checkpointing"],
        {"tp": 2, "ep": 4, "etp": 2, "recompute": 2},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "recipe", "fields"), MIXTURES, ids=str)
def test_so_it_is_with_experts_and_ranks_that_share_each_layer(sizes, recipe, fields):
    """Within 1 %, with even routing, which a dry run has."""
    predicted_B, dry_B = predicted_and_dry_B(sizes, ["fsdp2", *recipe], fields)
    assert predicted_B == pytest.approx(dry_B, rel=0.01)
