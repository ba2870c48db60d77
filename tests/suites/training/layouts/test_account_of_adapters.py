"""A frozen model with adapters in the account of layouts, against counts by hand."""

import pytest
from msgspec.structs import replace

from harness.question import Adapters, question_of
from suites.training import account_engine
from suites.training.layouts.shape_of_config import shape_of_config
from suites.training.of_question import frozen_base, subject_of

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 512, "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
MOE = {
    **LLAMA, "model_type": "qwen3_moe", "head_dim": 16, "moe_intermediate_size": 32, "num_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip

QV = 2 * ((64 + 64) + (64 + 32))
EVERY = 2 * ((64 + 64) + 2 * (64 + 32) + (64 + 64) + 3 * (64 + 160))
ATTENTION = 2 * ((64 + 64) + 2 * (64 + 32) + (64 + 64))
EXPERTS = 2 * ((64 + 64) + 2 * (64 + 32) + (64 + 64) + 8 * 3 * (64 + 32))


@pytest.mark.parametrize(
    ("config", "targets", "per_rank"),
    [
        (LLAMA, ("q_proj", "v_proj"), QV),
        (LLAMA, (), EVERY),
        (LLAMA, ("of_another_model",), EVERY),
        (LLAMA, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"), EVERY),
        (MOE, (), EXPERTS),
    ],
)
def test_adapters_have_a_rank_for_each_row_and_column(config, targets, per_rank):
    shape = shape_of_config(config)
    layers = sum(shape.layer_parameters(moe=each) for each in shape.layers_are_moe)
    found = frozen_base(shape, Adapters(rank=4, targets=targets))
    assert found.adapters * layers == pytest.approx(4 * per_rank)


@pytest.mark.parametrize(("base", "weight_B"), [("bf16", 2.0), ("int8", 1.0), ("nf4", 0.5 + 4 / 64)])
def test_states_are_the_frozen_weights_and_twelve_bytes_per_trained_one(base, weight_B):
    """torch FSDP on one device: 4 bytes of weight and of each moment; gradients are apart."""
    adapters = Adapters(rank=4, targets=("q_proj", "v_proj"), base=base)
    question = question_of(config=LLAMA, adapters=adapters, seq_len=64, devices=1, program="torchtitan")
    memory = account_engine.answer(question).memory
    shape = shape_of_config(LLAMA)
    layers = sum(shape.layer_parameters(moe=each) for each in shape.layers_are_moe)
    outside = shape.parameters - layers  # embedding, output layer and last norm
    expected = weight_B * layers + 2.0 * outside + 12 * 4 * QV
    assert memory.parts_B["states"] == pytest.approx(expected, rel=1e-6)
    with_ends = account_engine.answer(replace(question, adapters=replace(adapters, ends=True))).memory
    assert with_ends.parts_B["states"] == pytest.approx(expected + 12 * outside, rel=1e-6)


def test_deepspeeds_bucket_is_as_large_as_the_file_says_and_the_heads_gradient_lies_outside():
    """2 bytes of the bucket and of what is reduced; "auto", 0, is hidden_size² as the Trainer fills it."""
    asked = {"config": LLAMA, "seq_len": 64, "devices": 2, "sharing": "zero", "zero": 3}
    every, head = shape_of_config(LLAMA).parameters, 512 * 64

    def communication_B(**fields):
        return account_engine.answer(question_of(**asked, **fields)).memory.parts_B["communication"]

    usual_B = communication_B()
    assert communication_B(reduce_bucket=500_000_000) == usual_B
    assert communication_B(reduce_bucket=2 * 10**9) - usual_B == 2 * (2 * 10**9 - every)  # allocated whole
    assert usual_B - communication_B(reduce_bucket=0) == 4 * every - 2 * 64**2 - 2 * head
    assert usual_B - communication_B(reduce_bucket=40_000) == 4 * every - 4 * 40_000
    adapters = Adapters(rank=4, targets=("q_proj", "v_proj"))
    alone_B = communication_B(adapters=adapters) - communication_B(adapters=adapters, reduce_bucket=0)
    assert alone_B == 4 * every - 4 * 64**2


@pytest.mark.parametrize(("base", "weight_B"), [("bf16", 2.0), ("int8", 1.0), ("nf4", 0.5)])
def test_zero_3_gathers_a_frozen_base_as_it_is_stored(base, weight_B):
    """Two layers and, in bf16, the vocabulary's matrices; gradients of a layer's adapters alone."""
    adapters = Adapters(rank=4, targets=("q_proj", "v_proj"), base=base)
    asked = {"config": LLAMA, "adapters": adapters, "devices": 2, "program": "torchtitan", "zero": 3}
    memory = account_engine.answer(question_of(**asked, seq_len=4096, fused_loss=True)).memory
    layer = shape_of_config(LLAMA).layer_parameters(moe=False)
    expected = 2 * weight_B * layer + 2 * 2 * 512 * 64 + 4 * 4 * QV / 2
    assert memory.parts_B["communication"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("asked", "per_rank"),
    [
        ({"program": "megatron"}, EXPERTS),  # Megatron-Core's grouped linear layers
        ({"format": "litgpt"}, EXPERTS),
        ({"format": "axolotl"}, ATTENTION),  # transformers 5: tensors, which are no linear layers
        ({"sharing": "zero", "format": "llama_factory"}, ATTENTION),
        ({"adapters": Adapters(rank=4, experts="linear")}, EXPERTS),  # as before
    ],
)
def test_experts_have_adapters_where_they_are_linear_layers(asked, per_rank):
    asked = {"config": MOE, "adapters": Adapters(rank=4), "seq_len": 64, "devices": 1, **asked}
    subject = subject_of(question_of(**asked))
    layers = sum(subject.shape.layer_parameters(moe=each) for each in subject.shape.layers_are_moe)
    assert subject.training.frozen.adapters * layers == pytest.approx(4 * per_rank)


def test_adapters_of_a_hybrid_are_next_to_the_projections_of_its_mixers():
    """Nemotron-H's: one Mamba-2 layer of 8 heads, attention, and an MLP of two matrices, counted by hand."""
    config = {
        "model_type": "nemotron_h", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 160, "vocab_size": 512, "mamba_num_heads": 8,
        "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8, "hybrid_override_pattern": "M*-",
    }  # fmt: skip
    shape = shape_of_config(config)
    attention = (64 + 64) + 2 * (64 + 32) + (64 + 64)
    mixer = (64 + 2 * 128 + 2 * 2 * 8 + 8) + (128 + 64)
    mlp = 2 * (64 + 160)
    found = frozen_base(shape, Adapters(rank=4))
    assert found.adapters * shape.parameters_in_layers() == pytest.approx(4 * (attention + mixer + mlp))


def test_key_value_heads_may_be_fewer_than_ranks_in_megatron_alone():
    of = {"config": LLAMA, "seq_len": 64, "devices": 4, "tp": 4}
    assert account_engine.answer(question_of(**of, program="megatron")).memory
    with pytest.raises(Exception, match="num_key_value_heads=2"):
        account_engine.answer(question_of(**of, program="torchtitan"))
