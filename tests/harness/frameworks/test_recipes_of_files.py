"""Questions as techniques: the lists are accepted by this project, and what they leave out is named."""

import pytest
from refusals import refused

from harness.ask.recipe import with_positions, with_techniques
from harness.config.techniques import combination
from harness.frameworks.techniques import STEADY, approximated, techniques_of
from harness.question import Adapters, question_of

FSDP2 = {"sharing": "fsdp2", "zero": 3}
BOTH = ("optimizer", "parameters")


def asked(**values):
    return techniques_of(question_of(**{"devices": 8, **values}))


ZERO = {"sharing": "zero", "zero": 2}
LORA = {"rank": 16, "base": "nf4", "adapter_dtype": "fp32", "targets": ["q_proj"]}
SAME = [
    (FSDP2, "fsdp2", {}),
    ({"sharing": "fsdp2", "zero": 2}, "fsdp2", {"reshard_after_forward": False}),
    ({**FSDP2, "replicas": 2}, "fsdp2", {"shard_within": 4}),
    ({**FSDP2, "offload": BOTH}, "fsdp2", {"cpu_offload": True}),
    ({**FSDP2, "adapters": Adapters(rank=8, base="nf4"), "offload": BOTH}, "fsdp2", {"cpu_offload": True}),
    ({**ZERO, "offload": ("optimizer",)}, "zero", {"stage": 2}),
    ({**ZERO, "zero": 3, "offload": ("optimizer:disk", "parameters")}, "fsdp2", {"cpu_offload": True}),
    ({}, "ddp", {}),
    ({"offload": ("activations",)}, "activation_offload", {}),
    ({"recompute": "selective"}, "activation_checkpointing", {"mode": "per_op"}),
    ({**ZERO, "recompute": "selective"}, "activation_checkpointing", {"mode": "selective"}),
    ({"gradient_accumulation_steps": 9}, "gradient_accumulation", {"steps": STEADY, "split": False}),
    ({"compile": True, "format": "torchtitan"}, "compile", {"scope": "blocks"}),
    ({**FSDP2, "optimizer_in_backward": True}, "optimizer_in_backward", {}),
    ({"loss_chunks": 4}, "loss", {"chunks": 4}),
    ({"states": "bf16"}, "bf16_states", None),
    ({"adapters": Adapters(rank=16, targets=("q_proj",), base="nf4", experts="linear", rest="fp32",
     ends=True)}, "lora", {**LORA, "experts": "linear", "rest": "fp32", "ends": True}),
    ({"adapters": Adapters(rank=16, targets=("q_proj",), base="nf4", double=False, dropout=0.1)}, "lora",
     {**LORA, "double_quantization": False, "dropout": 0.1}),
    ({"adapters": Adapters(rank=1, prompts=2)}, "llama_adapter", {"version": 2, "base": "bf16"}),
    ({"recompute": "full", "offload": ("activations",)}, "activation_checkpointing", {"mode": "full",
     "every": 1, "on_host": True}),
    ({"sharing": "fsdp1", "zero": 3, "gradient_accumulation_steps": 2}, "fsdp1", {"strategy": "full_shard",
     "reduce_every_micro_batch": False}),
]  # fmt: skip


@pytest.mark.parametrize(("values", "name", "settings"), SAME)
def test_a_field_is_the_technique_of_the_same_meaning(values, name, settings):
    listed = dict(asked(**values).techniques)
    assert name in listed
    assert settings is None or listed[name] == settings
    assert ("mixed_precision" in listed) == ("states" not in values)
    accepted = dict(combination([{name: own} if own else name for name, own in listed.items()]))
    for name, own in listed.items():
        assert own.items() <= dict(accepted[name]).items()


TWO = {"zero": 3, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("program", "sharing", "late"),
    [
        ("verl", "fsdp1", False),  # workers/actor/dp_actor.py of b178a3c: loss.backward() alone
        ("torchtune", "fsdp2", False),
        ("litgpt", "fsdp1", True),  # no_backward_sync
        ("trl", "fsdp1", True),  # transformers' trainer, accelerate's no_sync
        ("axolotl", "fsdp2", True),
    ],
)
def test_gradients_are_reduced_as_often_as_the_program_does(program, sharing, late):
    listed = dict(asked(format=program, sharing=sharing, **TWO).techniques)
    assert listed[sharing].get("reduce_every_micro_batch", True) != late
    assert listed[sharing].get("reduce_dtype") == ("bf16" if late and sharing == "fsdp2" else None)


LEFT_OUT = {
    "pattern": {"adapters": Adapters(rank=8, targets=("model.*mlp",))},
    "quantized base": {"adapters": Adapters(rank=8, base="int8"), **FSDP2},
    "ZeRO-3 of a base": {"adapters": Adapters(rank=8, base="nf4"), "sharing": "zero", "zero": 3},
    "FSDP1's offload": {"sharing": "fsdp1", "zero": 3, "offload": BOTH},
    "counted as the device's": {**ZERO, "offload": ("optimizer",)},
    "zero 1": {"sharing": "megatron", "zero": 1},
    "nvfp4": {"precision": "nvfp4"},
    "micro-batches 3 to 9": {"gradient_accumulation_steps": 9},
}


def test_what_the_list_leaves_out_is_named_and_a_layout_is_refused():
    for name, values in LEFT_OUT.items():
        assert name in "; ".join(asked(**values).left_out)
    for size in ("tp", "pp", "cp", "ep"):
        refused(lambda size=size: asked(**{size: 2}), f"{size} 2")


def test_sequences_beyond_rotary_positions_are_answered_and_beyond_learned_ones_not():
    rotary = {"model_type": "llama", "max_position_embeddings": 8192}
    for config, tokens, positions in (
        (rotary, 16384, {"max_position_embeddings": 16384}),
        (rotary, 4096, {"max_position_embeddings": 8192}),
        ({"model_type": "gpt2", "n_positions": 1024}, 2048, {"n_positions": 1024}),
    ):
        question, notes = with_positions(question_of(config=config, seq_len=tokens))
        assert question.config == config | positions
        assert bool(notes) == (tokens == 16384)


def test_a_dry_run_has_deepspeeds_bucket_as_the_file_gives_it():
    """ "auto" is hidden_size²: transformers 5.23, integrations/deepspeed.py, trainer_config_finalize."""
    config = {"model_type": "llama", "hidden_size": 64}
    of_text = {"model_type": "gemma3", "text_config": config}
    shared = {"sharing": "zero", "zero": 3}
    for fields, settings in (
        ({}, {}),
        ({"reduce_bucket": 12845056}, {"reduce_bucket": 12845056}),
        ({"reduce_bucket": 0, "config": config}, {"reduce_bucket": 64**2}),
        ({"reduce_bucket": 0, "config": of_text}, {"reduce_bucket": 64**2}),
        ({"reduce_bucket": 0, "config": {"model_type": "opt"}}, {}),  # of a size that is not known
    ):
        assert dict(asked(**shared, **fields)[0])["zero"] == {"stage": 3, **settings}


def test_the_further_copy_of_logits_of_llama_factorys_version_1_is_bounded():
    sizes = {"seq_len": 8, "micro_batch_size": 3, "config": {"vocab_size": 10}}
    (key,) = approximated(question_of(format="llama_factory_v1", **sizes))
    assert (key.key, key.memory, key.most_B) == ("logits", "raises", 4 * 3 * 8 * 10)


def test_8_bit_states_on_the_host_are_taken_as_wide_ones():
    offloaded = {"sharing": "fsdp2", "zero": 3, "offload": BOTH, "devices": 2, "optimizer": "adamw_8bit"}
    question, left_out = with_techniques(question_of(config={"model_type": "llama"}, seq_len=8, **offloaded))
    assert ("fsdp2", {"cpu_offload": True}) in question.techniques
    assert "optimizer" not in dict(question.techniques)
    assert "8-bit states on the host" in left_out[-1]
