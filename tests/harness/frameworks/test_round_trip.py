"""What is written for a framework is read back as it was, for every layout that its file can express."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from refusals import refused

from harness.frameworks.architectures import DecoderSizes, config_of
from harness.frameworks.read import read_back, read_own_text, write_own
from harness.frameworks.table import DEFAULTS, framework_named, frameworks
from harness.question import Adapters, question_of

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
            {**ROUTED, **SHARED, "latent": True, **LATENT},
            {"positions": 2048},
            {"learned_positions": False, "tied": False},
        )
    ),
]
"""One model of each architecture that Megatron-LM's arguments are read as."""

ADAPTERS = [
    Adapters(rank=rank, targets=targets, base=base, dora=dora)
    for rank, targets, base, dora in (
        (1, (), "bf16", False),
        (16, ("q_proj", "v_proj"), "nf4", True),
        (64, ("k_proj", "o_proj", "q_proj", "v_proj"), "nf4", False),
    )
]
NAMED = {"ADAPTERS": ADAPTERS, "MODELS": MODELS, "LLAMA": [LLAMA]}
DATA = yaml.safe_load((Path(__file__).parents[2] / "data" / "expressed.yaml").read_text())
EXPRESSED = {
    name: {
        field: [
            tuple(one) if isinstance(one, list) else one
            for value in values
            for one in (NAMED.get(value, [value]) if isinstance(value, str) else [value])
        ]
        for field, values in fields.items()
    }
    for name, fields in DATA["frameworks"].items()
}


def test_every_framework_is_tried():
    assert set(EXPRESSED) == set(frameworks())


def fields_of(question):
    return replace(question, keys=(), origins={})


@pytest.mark.parametrize("name", frameworks())
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_written_is_recognised_and_read_back(name, data):
    values = {field: data.draw(st.sampled_from(allowed)) for field, allowed in EXPRESSED[name].items()}
    if values.get("sequence_parallel") and name.startswith("megatron"):
        values["sequence_parallel"] = values["tp"] > 1  # Megatron-LM switches it off with one rank
    if values.get("recompute_modules") and values["recompute"] != "selective":
        values["recompute_modules"] = ()  # Megatron-LM reads them with selective recompute alone
    if name.startswith("megatron") and values["ep"] == 1:
        values["dispatcher"] = "alltoall"  # of experts alone
    question = question_of(format=name, **values)
    text = write_own(question, name)
    read = read_own_text(text, suffix=framework_named(name).suffix or ".sh")
    assert read.format == name
    assert {field: getattr(read, field) for field in values} == values
    assert not read_back(question, name, text).keys() & values.keys()
    again = read_own_text(write_own(read, name), name, framework_named(name).suffix or ".sh")
    assert fields_of(again) == fields_of(read)
    assert not [one for one in read.keys if one.means.startswith("no key of")]


MEGATRON_ALONE = {
    "fp8_parameters": ({"precision": "fp8"}, True),
    "master_remainders": ({}, True),
    "layers_of_stages": ({"pp": 4}, (1, 3, 3, 1)),
    "grouped_experts": ({"ep": 2, "config": MODELS[3]}, False),
    "etp": ({"tp": 4, "ep": 2, "config": MODELS[3]}, 2),
    "virtual_stages": ({"pp": 2, "schedule": "interleaved1f1b"}, 4),
    "zero": ({"sharing": "fsdp2"}, 3),
    "optimizer": ({}, "sgd_momentum"),
}


@pytest.mark.parametrize("field", MEGATRON_ALONE)
@pytest.mark.parametrize("name", ["megatron", "megatron_bridge"])
def test_what_only_megatron_has_is_written_and_read_back(name, field):
    others, value = MEGATRON_ALONE[field]
    question = question_of(**{"format": name, "sharing": "megatron", "config": LLAMA, **others, field: value})
    read = read_own_text(write_own(question, name), name, framework_named(name).suffix or ".sh")
    assert getattr(read, field) == value


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("axolotl", "pp", 2),
        ("hugging_face", "ep", 2),
        ("hugging_face", "precision", "fp8"),
        ("hugging_face", "recompute", "selective"),
        ("accelerate", "pp", 4),
        ("deepspeed", "cp", 2),
        ("deepspeed", "offload", ("activations",)),
        ("megatron", "adapters", Adapters(rank=8)),
        ("megatron", "states", "bf16"),
        ("megatron_bridge", "precision", "fp32"),
        ("llama_factory", "offload", ("activations",)),
        ("llm_foundry", "cp", 2),
        ("llm_foundry", "compile", True),
        ("torchtune", "pp", 2),
        ("torchtune", "precision", "mxfp8"),
        ("torchtitan", "precision", "fp16"),
        ("torchtitan", "adapters", Adapters(rank=8)),
        ("nanotron", "zero", 3),
        ("nanotron", "virtual_stages", 2),
        ("nanotron", "recompute", "selective"),
    ],
)
def test_what_a_file_cannot_express_is_refused_and_named(name, field, value):
    own = {"nanotron": {"sharing": "nanotron"}, "llm_foundry": {"sharing": "fsdp1", "global_batch_size": 8}}
    fields = {"sharing": "fsdp2", "zero": 3, "dp": 8, "model_name": "llama-2-7b", "optimizer": "adamw"}
    if name == "nanotron":
        fields["zero"] = 1
    line = refused(lambda: write_own(question_of(**{**fields, **own.get(name, {}), field: value}), name), "")
    assert field in line or str(value) in line or str(next(iter(value), "")) in line


def test_a_written_file_that_says_otherwise_is_told():
    question = question_of(sharing="megatron", zero=1, dp=8, tp=2, model_name="llama-3.1-8b", seq_len=128)
    text = write_own(question, "torchtitan")
    assert read_back(question, "torchtitan", text)["zero"] == (1, 3)


def test_every_field_of_a_recipe_and_layout_is_written_by_some_framework():
    """A field that no file carries would be dropped silently on the way from one framework to another."""
    carried = set().union(*EXPRESSED.values()) | set(MEGATRON_ALONE)
    of_the_command = {"device", "memory_B", "gpus_per_node", "network_B_per_s", "network", "search"}
    of_reading = {"format", "framework", "model_source", "origins", "keys", "techniques", "program"}
    tried_elsewhere = {"layers_per_stage", "shard_size", "recompute_every"}
    assert set(DEFAULTS) - of_the_command - of_reading - tried_elsewhere == carried
