"""Published rows as questions: what words mean, what is inferred where nothing was published, and answers.

Facts: llm-foundry, commit 300cc5c5, scripts/train/benchmarking/README.md, line 76 and below; MLPerf
training 4.1.
"""

import json
from pathlib import Path

import pytest

from suites.training.layouts.families import ARCHITECTURES, HYBRIDS
from suites.training.layouts.shape_of_config import shape_without_type
from suites.training.of_question import subject_of
from suites.training.step_time.published import typed
from suites.training.step_time.published.typed import (
    is_compiled,
    letters,
    meaning,
    network_B_per_s,
    precision_of,
    recompute_of,
    sharding_of,
)
from suites.training.step_time.questions import answers, flat, question_of_row, steps_of_rows

LINES = Path(__file__).with_name("rows.jsonl").read_text().splitlines()
ROWS = {one["name"]: one["row"] for one in map(json.loads, LINES)}
LLAMA = ROWS["llama"]
RUN = {"model": "a model", "device": "H100", "gpus": 8, "framework": "Megatron-LM", "seq_len": 4096}
RUN |= {"shape": LLAMA}


def step(**changed):
    return {**ROWS["step"], **changed}


def test_words_of_rows():
    """Those of published steps are in the committed records of step_time; these are at the edges."""
    assert typed.program_of({"framework": "something new"}) == "torchtitan"
    assert typed.program_of({"framework": "torchtitan", "source": "mlperf gpt3"}) == "megatron"
    for word, stage in (("ZeRO-2", (2, False)), ("HYBRID_SHARD", (3, True)), (None, (1, False))):
        assert sharding_of(word, "megatron") == stage
    for row, architecture, precision in (
        ({"precision": "FP8-MX"}, "blackwell", "mxfp8"),
        ({"precision": "FP8"}, "ampere", "bf16"),
        ({"precision": "bf16", "source": "mlperf gpt3"}, "hopper", "fp8"),
        ({"precision": "", "framework": "Megatron Bridge"}, "hopper", "fp8"),
        ({"precision": "", "framework": "torchtitan"}, "hopper", "bf16"),
    ):
        assert precision_of(row, architecture) == precision, row
    words = (None, "none", "selective", "full", "1/2 of the layers")
    assert [recompute_of(word) for word in words] == ["none", "none", "selective", "full", "selective"]
    assert is_compiled({"notes": "torch.compile on"})
    assert not is_compiled({"notes": "without compile"})
    for network, rate in (
        ("EFA 3.2 Tbit/s per node (p5)", 50e9),
        ("Storage: 2x 200Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s", 50e9),
        ("4x 200 Gbps RDMA per node (README)", 12.5e9),
        ("Slingshot/CXI", 25e9),
        (None, 50e9),
    ):
        assert network_B_per_s({"network": network}, "hopper", 8) == rate, network


def test_what_was_not_published_is_inferred():
    steps = steps_of_rows([flat(step())])
    assert steps.layouts.micro_batches[0] == 64 / 2  # the batch over dp and micro-batch
    assert steps.layouts.virtual_stages[0] == 4  # eight layers per rank, two per stage
    assert steps.layouts.zero[0] == 1
    assert not steps.recompute_known
    half = {**step()["layout"], "gradient_accumulation_steps": 16}
    assert steps_of_rows([flat(step(layout=half))]).batches[0] == 2


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"device": "tpu_v5p"}, "^device 'tpu_v5p'"),
        ({"model": {"name": "unnamed", "num_hidden_layers": 2}}, "^model 'unnamed': its hidden_size"),
        ({"model": {**LLAMA, "name": "Nemotron-H 56B"}}, "^model .*layers other than attention and MLP"),
        ({"model": {**LLAMA, "name": "LFM2-1.2B"}}, "^model .*layers other than attention and MLP"),
    ],
)
def test_what_is_not_known_is_named(changed, named):
    with pytest.raises(ValueError, match=named):
        question_of_row(flat(step(**changed)))
    assert answers([step(**changed)]) == [{"id": "one", "step_s": None}]


def test_what_a_row_states_is_not_inferred():
    """126 layers on 8 × 4 stages: embedding and output layer count as one each."""
    shape = {**LLAMA, "num_hidden_layers": 126, "tie_word_embeddings": False, "mlp": "squared relu"}
    row = {**RUN, "framework": "NeMo", "shape": shape, "device": "a100_40gb", "pp": 8, "vp": 4}
    of = question_of_row(row)
    assert of.device == "a100_40gb"
    assert [(of.config or {})[name] for name in ("tie_word_embeddings", "gated_mlp")] == [False, False]
    assert (of.virtual_stages, of.layers_of_stages) == (4, ())
    assert question_of_row({**row, "pp": 4, "vp": 5}).layers_of_stages == (32, 32, 31, 31)
    assert (of.gradients, of.master_remainders) == ("fp32", False)
    of = question_of_row({**row, "other": {"performance_recipe": True}})
    assert (of.gradients, of.master_remainders) == ("bf16", True)
    assert question_of_row({**row, "pp": 1, "vp": 1, "sharding": "FSDP 8"}).program == "megatron"


def test_a_run_is_a_question_whose_origins_say_what_was_stated():
    of = question_of_row(ROWS["run"])
    assert (of.program, of.device, of.tp, of.dp, of.zero) == ("megatron", "a100_80gb", 8, 32, 0)
    assert (of.gradient_accumulation_steps, of.recompute, of.precision) == (8, "full", "fp16")
    assert of.attention == "explicit"  # FlashAttention is younger
    assert shape_without_type(of.config or {}).parameters == pytest.approx(18.4e9, rel=0.01)  # as published
    assert of.origin("recompute").kind == "key"
    assert of.origin("attention").kind == "assumption"
    assert of.gradients == "fp32"  # bf16 is that of NeMo's recipes alone


@pytest.mark.parametrize(
    ("gpus", "batch", "micro", "parts"),
    [(512, 4, 1, (8, 16, 4)), (16, 8, 1, (2, 1, 8)), (8, 4, 2, (4, 1, 2)), (8, 8, 1, (1, 1, 8))],
)
def test_fewer_sequences_than_gpus_share_each_by_a_layout_that_divides(gpus, batch, micro, parts):
    run = {**RUN, "gpus": gpus, "global_batch_size": batch, "micro_batch_size": micro}
    question = question_of_row(run)
    assert (question.tp, question.cp, question.dp) == parts
    assert question.origin("tp").kind == question.origin("cp").kind == "assumption"
    subject_of(question)


def test_a_name_shows_whether_its_architecture_is_a_hybrid():
    for one in ARCHITECTURES:
        assert meaning("hybrids", letters(one.removesuffix("_text")), False) == (one in HYBRIDS), one


def test_a_run_with_adapters_has_their_layers():
    row = ROWS["adapters"]
    of = question_of_row(row, lambda name: {**LLAMA, "model_type": "llama"})
    assert of.adapters is not None
    assert (of.adapters.rank, of.adapters.targets, of.adapters.base) == (32, ("q_proj", "v_proj"), "nf4")
    assert (of.states, of.recompute, of.optimizer) == ("bf16", "full", "adamw_8bit")
    assert (of.offload, of.zero) == (("activations",), 0)
    lowering = [key.key for key in of.keys if key.memory == "lowers"]
    assert lowering == ["padded_or_packed", "optimizer"]  # paged


LORA = {"model": "Mixtral-8x7B", "method": "qlora", "lora": {"rank": 16}, "gpus": 1, "device": "A100-80GB"}


@pytest.mark.parametrize(
    ("row", "adapters"),
    [
        ({"framework": "TRL SFTTrainer", "date": "2025-02"}, {"experts": "linear", "rest": "fp32"}),
        ({"framework": "TRL SFTTrainer", "date": "2025-02", "sharding": "fsdp1"}, {"rest": "bf16"}),
        ({"framework": "TRL SFTTrainer", "date": "2026-02"}, {"experts": "bf16"}),
        ({"framework": "Axolotl", "date": "2026-02", "other": {"quant": {"quantize_moe_experts": True}}},
         {"experts": "tensor", "rest": "bf16"}),
        ({"framework": "LitGPT", "precision": "nf4-dq"}, {"lightning": True, "double": True, "flat": True}),
        ({"framework": "LitGPT", "precision": "bnb.nf4"}, {"double": False, "dtype": "bf16"}),
        ({"framework": "LitGPT", "method": "adapter_v2", "lora": {}}, {"prompts": 2}),
        ({"framework": "transformers", "other": {"trainable_extra": "embedding"}}, {"ends": True}),
    ],
)  # fmt: skip
def test_adapters_are_those_of_the_framework_at_its_date(row, adapters):
    found = question_of_row({**LORA, **row}, lambda name: {**LLAMA, "model_type": "llama"}).adapters
    assert {name: getattr(found, name) for name in adapters} == adapters


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"framework": "LLaMA-Factory", "loss": "unsloth", "other": {"unsloth": True}, "date": "2024-04"},
         {"offload": ("activations",), "loss_in_place": True, "fused_loss": False}),
        ({"framework": "Unsloth", "loss": "unsloth", "date": "2025-01"},
         {"loss_in_place": False, "fused_loss": True}),
        ({"framework": "transformers Trainer", "date": "2024-04"}, {"optimizer_impl": "foreach"}),
        ({"framework": "transformers Trainer", "date": "2025-09"}, {"optimizer_impl": "fused"}),
        ({"framework": "transformers Trainer", "date": "2024-04", "optimizer": "AdamW fused"},
         {"optimizer_impl": "fused"}),
        ({"framework": "torchtune", "offload": "cpu", "sharding": "fsdp2", "gpus": 2},
         {"offload": ("parameters", "optimizer"), "loss_chunks": 8}),
        ({"framework": "LitGPT", "sharding": "fsdp1", "gpus": 2}, {"recompute": "full"}),
        ({"framework": "LitGPT", "sharding": "none"}, {"recompute": "none"}),
        ({"framework": "Axolotl", "method": "full", "lora": None, "precision": "bf16"}, {"states": "bf16"}),
        ({"framework": "Axolotl", "method": "full", "lora": None, "precision": "bf16", "sharding": "zero3"},
         {"states": "fp32"}),
        ({"framework": "Axolotl", "precision": "bf16"}, {"states": "fp32"}),  # of adapters
        ({"framework": "ms-swift", "method": "full", "lora": None, "precision": "bf16"}, {"states": "bf16"}),
        ({"framework": "Megatron-SWIFT", "method": "full", "lora": None, "precision": "bf16"},
         {"states": "fp32"}),
        ({"framework": "NeMo AutoModel", "method": "full", "lora": None, "precision": "bf16"},
         {"states": "bf16", "fused_layers": True}),
    ],
)  # fmt: skip
def test_what_a_page_leaves_open_is_its_frameworks_at_its_date(row, fields):
    of = question_of_row(
        {**LORA, **row}, lambda name: {**LLAMA, "model_type": "llama", "tie_word_embeddings": True}
    )
    assert {name: getattr(of, name) for name in fields} == fields
    assert (of.config or {})["tie_word_embeddings"] is ("LitGPT" not in row["framework"])


def test_published_steps_lie_in_the_interval():
    said = answers([one["step"] for one in ROWS["published"]])
    for one, published in zip(said, ROWS["published"], strict=True):
        assert one["step_s_low"] < published["seconds"] < one["step_s_high"]
        assert one["step_s"] == pytest.approx(published["seconds"], rel=0.15)
    (twice,) = answers([ROWS["published"][0]["step"] | {"global_batch_size": 4096}])
    assert twice["step_s"] == pytest.approx(2 * said[0]["step_s"], rel=0.02)
