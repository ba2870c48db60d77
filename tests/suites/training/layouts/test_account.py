"""The closed account of layouts against other formulas, a model's parameters and dry runs of a step."""

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
import torch

from harness.instruments.transformer import TransformerShape
from harness.question import Question
from suites.training import techniques
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.dry_run.estimates import korthikanti_layer_bytes
from suites.training.layouts.account import peak_of_rank, worst_peak
from suites.training.layouts.kept import kept_of_layer
from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.room import outside_allocator_B
from suites.training.layouts.search import LayoutGpus, LayoutSubject, fits, memory_kinds
from suites.training.layouts.states import all_layers_of, parameters_of, passes_of_stage
from suites.training.models.model import Transformer
from suites.training.workload import Workload

GPT = TransformerShape(
    num_hidden_layers=8, hidden_size=64, num_attention_heads=8, num_key_value_heads=8, head_dim=8,
    intermediate_size=256, vocab_size=1024, gated=False, layer_norm=True, learned_positions=128,
    qkv_bias=True, attention_output_bias=True, mlp_bias=True, expert_bias=True, dropout=0.1,
)  # fmt: skip
TRAINING = Training(seq_len=128)
FIRST = np.array([0])


def one(**row):
    return Layouts.of([{"micro_batch_size": 3, "sequence_parallel": 0, **row}])


def parameters(shape, layout, rank=0):
    ranks = np.array([rank])
    return float(parameters_of(shape, layout, all_layers_of(shape, layout, TRAINING, ranks), ranks).all[0])


@pytest.mark.parametrize(
    ("attention", "recompute", "kept"),
    [("fused", 0, "no_scores"), ("unfused", 0, "all"), ("unfused", 1, "no_scores")],
)
def test_a_layer_keeps_what_korthikanti_says(attention, recompute, kept):
    for ranks, sequence_parallel in ((1, 0), (2, 0), (4, 0), (2, 1), (4, 1)):
        layout = one(tp=ranks, sequence_parallel=sequence_parallel, recompute=recompute)
        expected_B = korthikanti_layer_bytes(128, 3, 64, 8, kept, ranks, bool(sequence_parallel))
        sums_B = 4 * 128 * 3 * 8 / ranks if attention == "fused" else 0
        found = kept_of_layer(GPT, layout, replace(TRAINING, attention=attention))
        assert found.dense[0] == pytest.approx(expected_B + sums_B)


LLAMA = {"bias": False, "norm": "rms", "mlp": "swiglu", "position": "rotary"}
LLAMA_SHAPE = {"gated": True, "layer_norm": False, "learned_positions": 0, "qkv_bias": False,
               "attention_output_bias": False, "mlp_bias": False}  # fmt: skip
TIED = {"tie_word_embeddings": True, "num_key_value_heads": 2}


@pytest.mark.parametrize(("of_workload", "of_shape"), [(TIED, TIED), (LLAMA, LLAMA_SHAPE)], ids=str)
def test_one_rank_has_the_models_parameters(of_workload, of_shape):
    workload = Workload(**{
        "num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8,
        "intermediate_size": 256, "vocab_size": 1024, "seq_len": 128, "norm": "layer", "mlp": "gelu",
        "position": "learned", "bias": True, **of_workload,
    })  # fmt: skip
    with torch.device("meta"):
        model = Transformer(workload.shape)
    assert parameters(replace(GPT, **of_shape), one()) == sum(each.numel() for each in model.parameters())


def test_ranks_share_the_parameters_and_pad_the_vocabulary():
    shape = replace(GPT, vocab_size=1000)
    whole = parameters(shape, one())
    assert sum(parameters(shape, one(pp=4), rank) for rank in range(4)) == whole
    replicated = 64 * 128 + 8 * (2 * 2 * 64 + 2 * 64) + 2 * 64  # positions, norms and two biases per layer
    assert 2 * parameters(shape, one(tp=2)) == whole + replicated


MOE = replace(GPT, num_experts=8, experts_per_token=2, moe_intermediate_size=32, shared_intermediate_size=64,
              moe_layers=(False, False, *[True] * 6))  # fmt: skip


def test_ranks_share_experts_and_copies_of_them_are_sharded():
    (shared, experts, _), (all_shared, all_experts, _) = (
        parameters_of(MOE, layout, all_layers_of(MOE, layout, TRAINING, FIRST), FIRST)
        for layout in (one(dp=8, ep=4, etp=1), one(dp=8))
    )
    assert shared[0] == all_shared[0]
    assert 4 * experts[0] == all_experts[0] == 6 * 8 * MOE.expert_parameters
    assert shared[0] + all_experts[0] == MOE.parameters  # vocabulary of 1,024: no padding
    zero1 = one(dp=8, ep=4, etp=1, zero=1)
    states_B = peak_of_rank(MOE, zero1, TRAINING, FIRST).states[0]
    assert states_B == pytest.approx(shared[0] * (6 + 12 / 8) + experts[0] * (6 + 12 / 2))


def test_passes_of_stages_are_those_of_a_schedule_that_is_stepped_through():
    """Forward passes go through the stages in groups of as many micro-batches as there are ranks."""
    for micro_batches, rank, stage in product((4, 8, 16), range(4), range(3)):
        layout = one(pp=4, virtual_stages=3, micro_batches=micro_batches)
        order = [stage for _ in range(micro_batches // 4) for stage in range(3) for _ in range(4)]
        waiting = order[: 2 * (4 - rank - 1) + 2 * 4 + 1]
        assert passes_of_stage(layout, np.array([rank]), stage)[0] == waiting.count(stage)


@pytest.mark.parametrize("program", ["megatron", "nanotron", "torchtitan"])
def test_every_layer_is_on_one_stage(program):
    shape = replace(MOE, num_hidden_layers=24, moe_layers=(False,) * 5 + (True,) * 19)
    for pp, virtual_stages in ((1, 1), (3, 1), (4, 2), (2, 5)):
        layout, training = one(pp=pp, virtual_stages=virtual_stages), replace(TRAINING, program=program)
        of = [all_layers_of(shape, layout, training, np.array([rank])) for rank in range(pp)]
        assert sum(float(layers.dense[0]) for layers in of) == 5
        assert sum(float(layers.moe[0]) for layers in of) == 19


LLAMA_8B = TransformerShape(
    num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    intermediate_size=14336, vocab_size=128256,
)  # fmt: skip


def test_states_are_those_by_hand_and_all_kinds_add_up_to_what_the_search_needs():
    layout, training = Layouts.of([{"pp": 4, "dp": 8, "zero": 1, "micro_batches": 8}]), Training(seq_len=4096)
    subject = LayoutSubject(Question(), LLAMA_8B, training, LayoutGpus(32), layout)
    kinds, worst, found = memory_kinds(subject), worst_peak(LLAMA_8B, layout, training), fits(subject, layout)
    # of a rank in the middle: eight layers of four matrices of attention, three of the MLP, and two norms
    own = 8 * 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336 + 2)
    assert kinds["parameters"][1] == 2 * own  # bf16
    assert kinds["gradients"][1] == 4 * own  # fp32
    assert kinds["optimizer"][1] == 12 * own / 8  # fp32 weights and two moments over eight ranks
    assert kinds["parameters"][0] == 2 * (own + 128256 // 128 * 128 * 4096)
    assert kinds["logits"][:3] == pytest.approx(0)
    assert kinds["logits"][3] > 0
    needed_B = sum(kinds.values()) - kinds["outside"]
    assert needed_B.max() == pytest.approx(found.needed[0])
    assert (needed_B - kinds["fragmentation"]).max() == pytest.approx(worst.total_B[0])
    assert kinds["outside"] == pytest.approx(outside_allocator_B(layout)[0])


@pytest.mark.parametrize(("layout", "ranks"), [({"zero": 0, "dp": 8}, 1), ({"zero": 1, "dp": 8}, 8), ({}, 1)])
def test_megatrons_update_has_fp32_copies_of_16_bit_gradients_when_activations_are_gone(layout, ranks):
    """core/optimizer/optimizer.py, _copy_model_grads_to_main_grads; not if precision-aware."""
    short = Training(seq_len=8, gradients="bf16")
    row, own = one(**{"micro_batch_size": 1, **layout}), parameters(LLAMA_8B, one())
    states_B = (2 + 2 + 12 / ranks) * own
    update_B = states_B + 4 * own / ranks
    peak = peak_of_rank(LLAMA_8B, row, short, FIRST)
    assert peak.total_B[0] - peak.workspaces[0] == pytest.approx(update_B, rel=1e-6)
    aware = peak_of_rank(LLAMA_8B, row, replace(short, master_remainders=True), FIRST)
    assert aware.total_B[0] < peak.total_B[0]
    long = replace(short, seq_len=131072)
    narrow, wide = (
        peak_of_rank(LLAMA_8B, row, replace(long, gradients=kind), FIRST).total_B[0]
        for kind in ("bf16", "fp32")
    )
    assert wide - narrow == pytest.approx(2 * own)


ALONE = {"dp_size": 1}
KEEP = {"fsdp2": {"reshard_after_forward": False}}
PIPELINE = {"pp_size": 2, "num_hidden_layers": 16, "dp_size": 4, "gradient_accumulation_steps": 4}

CHECKPOINTED = "activation_checkpointing"
STEPS = [
    ({}, [], {}),
    ({"micro_batch_size": 4}, [CHECKPOINTED], {"recompute": 2}),
    ({"num_key_value_heads": 16, "vocab_size": 32000}, [], {}),
    ({"vocab_size": 32000, "micro_batch_size": 2}, [CHECKPOINTED], {"recompute": 2}),
    ({"micro_batch_size": 4}, [{CHECKPOINTED: {"mode": "per_op"}}], {"recompute": 1}),
    ({"seq_len": 512, "dp_size": 2}, [CHECKPOINTED], {"recompute": 2}),
    ({"seq_len": 512, "dp_size": 4, "vocab_size": 32000}, [], {}),
    ({}, [KEEP], {"zero": 2}),
    ({"vocab_size": 32000, "micro_batch_size": 2}, [KEEP, CHECKPOINTED], {"recompute": 2, "zero": 2}),
    ({**PIPELINE, "vocab_size": 32000}, ["pipeline", "fsdp2"], {"pp": 2, "micro_batches": 4}),
    (PIPELINE, ["pipeline", "fsdp2", CHECKPOINTED], {"pp": 2, "micro_batches": 4, "recompute": 2}),
    # not sharded: without the bf16 copies of weights the second would be 11 % too low
    ({**ALONE, "micro_batch_size": 2}, [CHECKPOINTED], {"zero": 0, "recompute": 2}),
    (ALONE, [], {"zero": 0}),
    ({**ALONE, "vocab_size": 1024, "seq_len": 512}, [], {"zero": 0}),
]


SIZES = {"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
         "intermediate_size": 8192, "vocab_size": 128256}  # fmt: skip
USUAL = {**SIZES, "seq_len": 4096, "dp_size": 8, "optimizer_impl": "fused", "micro_batch_size": 1}
OF_EXPERTS = {"num_experts": "num_experts", "num_experts_per_tok": "experts_per_token",
              "moe_intermediate_size": "moe_intermediate_size",
              "shared_expert_intermediate_size": "shared_intermediate_size"}  # fmt: skip


def predicted_and_dry_B(sizes, recipe, fields):
    """Return the peak of a step of torchtitan's kind by account, with even routing, and by its dry run."""
    sizes = {**USUAL, **sizes}
    listed = [*recipe, "mixed_precision", {"attention": {"kernel": "flash"}}]
    step = techniques.build_step(asdict(Workload(**sizes)), listed, 0)
    run = dry_run(step, Device("cuda", architecture="hopper"))
    experts = {shape: sizes[name] for name, shape in OF_EXPERTS.items() if name in sizes}
    shape = TransformerShape(**{name: sizes[name] for name in SIZES}, head_dim=128, **experts)
    row = {"dp": sizes["dp_size"], "zero": 3, "micro_batch_size": sizes["micro_batch_size"], **fields}
    training = Training(seq_len=sizes["seq_len"], program="torchtitan", attention="flash", imbalance=1.0)
    return float(worst_peak(shape, Layouts.of([row]), training).total_B[0]), run.allocated_B


@pytest.mark.parametrize(("sizes", "recipe", "fields"), STEPS, ids=str)
def test_fsdp2_takes_what_the_dry_run_of_the_same_step_takes(sizes, recipe, fields):
    """Within 1 %: the dry run traces torch's own operations, the account adds up tensors."""
    whole = fields.get("zero") == 0
    sharding = [] if whole or "fsdp2" in recipe or KEEP in recipe else ["fsdp2"]
    predicted_B, dry_B = predicted_and_dry_B(sizes, [*sharding, *recipe], fields)
    short = sizes.get("seq_len", 4096) < 4096  # gradients decide: the account has all of a layer's at once
    assert predicted_B == pytest.approx(dry_B, rel=0.05 if short or whole else 0.01)


SEQUENCE = {"tensor_parallel": {"sequence_parallel": True}}
WHOLE = {"expert_parallel": {"expert_tensor_parallel": False}}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 2048, "ep_size": 4,
           "vocab_size": 32000, "micro_batch_size": 2}  # fmt: skip
SPREAD = {"dp_size": 4, "tp_size": 2}

SHARED = {"shared_expert_intermediate_size": 2048}
MANY = {"num_hidden_layers": 8, "num_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 1024}  # fmt: skip
EP = "expert_parallel"

MIXTURES = [
    ({**SPREAD, "vocab_size": 32000, "micro_batch_size": 2}, [SEQUENCE], {"tp": 2}),
    ({**SPREAD, "vocab_size": 128256}, ["tensor_parallel"], {"tp": 2, "sequence_parallel": 0}),
    ({**EXPERTS, **SHARED}, [EP], {"ep": 4}),
    ({**EXPERTS, **SPREAD, "ep_size": 1}, [SEQUENCE], {"tp": 2, "etp": 2}),
    ({**EXPERTS, **SPREAD}, [EP, SEQUENCE], {"tp": 2, "ep": 4, "etp": 2}),
    ({**EXPERTS, **SPREAD, "tp_size": 4, **SHARED}, [EP, SEQUENCE], {"tp": 4, "ep": 4, "etp": 4}),
    ({**EXPERTS, **SPREAD}, [EP, "tensor_parallel"], {"tp": 2, "ep": 4, "etp": 2, "sequence_parallel": 0}),
    ({**EXPERTS, **SPREAD, "ep_size": 8}, [WHOLE, SEQUENCE], {"tp": 2, "ep": 8}),
    ({**EXPERTS, **SPREAD, "ep_size": 8, **MANY}, [WHOLE, SEQUENCE], {"tp": 2, "ep": 8}),
    ({**EXPERTS, **SPREAD, "micro_batch_size": 4}, [EP, SEQUENCE, CHECKPOINTED],
     {"tp": 2, "ep": 4, "etp": 2, "recompute": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "recipe", "fields"), MIXTURES, ids=str)
def test_so_it_is_with_experts_and_ranks_that_share_each_layer(sizes, recipe, fields):
    """Within 1 %, with even routing, which a dry run has."""
    predicted_B, dry_B = predicted_and_dry_B(sizes, ["fsdp2", *recipe], fields)
    assert predicted_B == pytest.approx(dry_B, rel=0.01)
