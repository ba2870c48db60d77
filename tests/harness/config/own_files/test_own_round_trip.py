"""What is written for a framework is read back as it was, for every layout that its file can express."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.own_files.architectures import DecoderSizes, config_of
from harness.config.own_files.read import FORMATS, WRITERS, format_named, read_own_text, write_own
from harness.config.own_files.setup import Adapters, OwnSetup

SUFFIXES = {"toml": ".toml", "json": ".json", "yaml": ".yaml", "command": ".sh"}
LLAMA = {
    "num_hidden_layers": 8,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "model_type": "llama",
}
SIZES = {"num_hidden_layers": 8, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 4096}
MODERN = {"gated": True, "rms_norm": True, "bias": False, "learned_positions": False, "tied": False}
ROUTED = {**MODERN, "num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 64}
LATENT = {
    "q_lora_rank": 96,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}
SHARED = {"shared_intermediate_size": 128, "dense_layers": 2}
MODELS = [
    LLAMA,
    *(
        config_of(DecoderSizes(**SIZES, intermediate_size=512, num_key_value_heads=4, **own))
        for own in (
            {**MODERN, "qkv_bias": True},
            {**MODERN, "qk_norm": True, "head_dim": 48},
            ROUTED,
            {**ROUTED, "qk_norm": True},
            {**ROUTED, **SHARED},
            {**ROUTED, **SHARED, "qk_norm": True, "qkv_bias": True},
        )
    ),
    *(
        config_of(DecoderSizes(**SIZES, intermediate_size=512, **own))
        for own in (
            {**ROUTED, **SHARED, "latent": LATENT},
            {"positions": 2048},
            {"learned_positions": False, "tied": False},
        )
    ),
]
"""One model of each architecture that Megatron-LM's arguments are read as."""

small = st.sampled_from([1, 2, 4])
flag = st.booleans()
adapters = st.builds(
    Adapters,
    rank=st.integers(1, 64),
    targets=st.sampled_from([(), ("q_proj", "v_proj"), ("k_proj", "o_proj", "q_proj", "v_proj")]),
    base=st.sampled_from(["bf16", "nf4"]),
    dora=flag,
)

COMMON = {
    "micro_batch_size": st.integers(1, 16),
    "seq_len": st.sampled_from([512, 2048, 8192]),
}
HF = {
    **COMMON,
    "gradient_accumulation_steps": st.integers(1, 16),
    "precision": st.sampled_from(["bf16", "fp16", "fp32"]),
    "recompute": st.sampled_from(["none", "full"]),
    "compile": flag,
    "fused_loss": flag,
    "optimizer_impl": st.sampled_from(["fused", "foreach"]),
    "attention": st.sampled_from(["flash", "explicit"]),
    "model_name": st.just("meta-llama/Llama-3.1-8B"),
}
FSDP = {"engine": st.sampled_from(["fsdp1", "fsdp2"]), "zero": st.sampled_from([2, 3])}
MEGATRON = {
    **COMMON,
    "engine": st.just("megatron"),
    "tp": small,
    "pp": small,
    "cp": small,
    "ep": small,
    "zero": st.sampled_from([0, 1, 2, 3]),
    "sequence_parallel": flag,
    "global_batch_size": st.sampled_from([64, 256]),
    "precision": st.sampled_from(["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "recompute_modules": st.sampled_from([(), ("mlp",), ("layernorm", "moe_act")]),
    "dispatcher": st.sampled_from(["alltoall", "allgather", "deepep"]),
    "attention": st.sampled_from(["flash", "explicit"]),
    "offload": st.sampled_from([(), ("optimizer",)]),
    "model": st.just(LLAMA),
}
EXPRESSED = {
    "torchtitan": {
        **COMMON,
        "model_name": st.just("llama3/8B"),
        "engine": st.just("fsdp2"),
        "tp": small,
        "pp": small,
        "cp": small,
        "ep": small,
        "zero": st.sampled_from([2, 3]),
        "replicas": small,
        "dp": st.sampled_from([8, 16]),
        "precision": st.sampled_from(["bf16", "fp32", "fp8", "mxfp8"]),
        "states": st.sampled_from(["fp32", "bf16"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "compile": flag,
        "offload": st.sampled_from([(), ("optimizer", "parameters")]),
        "optimizer_impl": st.sampled_from(["fused", "foreach", "for_loop"]),
        "optimizer_in_backward": flag,
    },
    "axolotl": {
        **HF,
        **FSDP,
        "tp": small,
        "cp": small,
        "precision": st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
        "offload": st.sampled_from(
            [(), ("optimizer", "parameters"), ("activations", "optimizer", "parameters")]
        ),
        "adapters": st.none() | adapters,
        "recompute": st.sampled_from(["none", "selective", "full"]),
    },
    "llama_factory": {**HF, **FSDP, "adapters": st.none() | adapters},
    "hugging_face": {**HF, **FSDP, "tp": small, "cp": small, "adapters": st.none() | adapters},
    "accelerate": {
        **FSDP,
        "tp": small,
        "cp": small,
        "devices": st.sampled_from([8, 64]),
        "precision": st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
        "recompute": st.sampled_from(["none", "full"]),
        "offload": st.sampled_from([(), ("optimizer", "parameters")]),
        "compile": flag,
    },
    "deepspeed": {
        "micro_batch_size": st.integers(1, 16),
        "gradient_accumulation_steps": st.integers(1, 16),
        "engine": st.just("zero"),
        "zero": st.just(3),
        "tp": small,
        "precision": st.sampled_from(["bf16", "fp16", "fp32"]),
        "offload": st.sampled_from([(), ("optimizer",), ("optimizer", "parameters"), ("optimizer:disk",)]),
        "compile": flag,
    },
    "megatron": {**MEGATRON, "model": st.sampled_from(MODELS)},
    "megatron_bridge": MEGATRON,
    "llm_foundry": {
        **COMMON,
        "engine": st.just("fsdp1"),
        "zero": st.sampled_from([2, 3]),
        "global_batch_size": st.sampled_from([64, 256]),
        "precision": st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
        "recompute": st.sampled_from(["none", "full"]),
        "offload": st.sampled_from([(), ("activations",), ("activations", "optimizer", "parameters")]),
        "attention": st.sampled_from(["flash", "explicit"]),
        "tp": small,
        "model_name": st.just("meta-llama/Llama-3.1-8B"),
    },
    "torchtune": {
        **COMMON,
        "model_name": st.just("llama3_1_8b"),
        "engine": st.just("fsdp2"),
        "zero": st.sampled_from([2, 3]),
        "gradient_accumulation_steps": st.integers(1, 16),
        "recompute": st.sampled_from(["none", "full", "selective"]),
        "tp": small,
        "cp": small,
        "replicas": small,
        "offload": st.sampled_from([(), ("activations",), ("optimizer", "parameters")]),
        "loss_chunks": st.sampled_from([1, 4, 8]),
        "compile": flag,
        "optimizer_impl": st.sampled_from(["fused", "foreach"]),
        "optimizer_in_backward": flag,
    },
    "nanotron": {
        **COMMON,
        "engine": st.just("nanotron"),
        "dp": small,
        "tp": small,
        "pp": small,
        "cp": small,
        "ep": small,
        "zero": st.sampled_from([0, 1]),
        "schedule": st.sampled_from(["1f1b", "gpipe"]),
        "sequence_parallel": flag,
        "gradient_accumulation_steps": st.integers(1, 16),
        "recompute": st.sampled_from(["none", "full"]),
        "precision": st.sampled_from(["bf16", "fp32"]),
        "model": st.just(LLAMA),
    },
}


def suffix_of(name):
    return SUFFIXES[WRITERS.get(name, "yaml")]


def test_every_format_is_tried():
    assert set(EXPRESSED) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(name, data):
    values = data.draw(st.fixed_dictionaries(EXPRESSED[name]))
    if values.get("sequence_parallel") and name.startswith("megatron"):
        values["sequence_parallel"] = values["tp"] > 1  # Megatron-LM switches it off with one rank
    if values.get("recompute_modules") and values["recompute"] != "selective":
        values["recompute_modules"] = ()  # Megatron-LM reads them with selective recompute alone
    setup = OwnSetup(format=name, framework=format_named(name).SOURCE, **values)
    read = read_own_text(write_own(setup, name), name, suffix_of(name))
    assert {field: getattr(read, field) for field in values} == values
    assert read_own_text(write_own(read, name), name, suffix_of(name)) == read
    assert not [one for one in read.not_understood if one.why.startswith("no key of")]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_what_is_written_is_recognised(name, data):
    values = data.draw(st.fixed_dictionaries(EXPRESSED[name]))
    setup = OwnSetup(format=name, framework="", **values)
    assert read_own_text(write_own(setup, name), suffix=suffix_of(name)).format == name


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("axolotl", {"pp": 2}),
        ("hugging_face", {"ep": 2}),
        ("hugging_face", {"precision": "fp8"}),
        ("accelerate", {"pp": 4}),
        ("deepspeed", {"cp": 2}),
        ("megatron", {"adapters": Adapters(rank=8)}),
        ("llm_foundry", {"cp": 2}),
        ("torchtune", {"pp": 2}),
        ("nanotron", {"zero": 3}),
        ("nanotron", {"virtual_stages": 2}),
    ],
)
def test_what_a_file_cannot_express_is_refused_and_named(name, change):
    setup = replace(OwnSetup(format=name, framework="", engine="fsdp2", zero=3, dp=8), **change)
    with pytest.raises(ValueError) as raised:
        write_own(setup, name)
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) <= 300
    assert str(next(iter(change.values()))) in text or "adapters" in text or next(iter(change)) in text


def test_every_field_of_a_setup_is_written_by_some_format():
    """A field that no file carries would be dropped silently on the way from one framework to another."""
    carried = set().union(*EXPRESSED.values())
    of_lists = {"understood", "not_understood", "irrelevant", "defaults"}
    derived = {
        "format",
        "framework",
        "model_source",
        "virtual_stages",
        "layers_per_stage",
        "shard_size",
        "etp",
        "optimizer",
        "recompute_every",
    }
    assert {one.name for one in fields(OwnSetup)} - of_lists - derived == carried
