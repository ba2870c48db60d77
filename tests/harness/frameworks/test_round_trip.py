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

SIZES = {"num_hidden_layers": 8, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 4096}
LLAMA = {
    **SIZES, "model_type": "llama", "num_key_value_heads": 4, "intermediate_size": 512,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 4}
MODERN = {"gated": True, "rms_norm": True, "bias": False, "learned_positions": False, "tied": False}
ROUTED = {**MODERN, "num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 64}
SHARED = {**ROUTED, "shared_intermediate_size": 128, "dense_layers": 2}
LATENT = {
    "latent": True, "q_lora_rank": 96, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}  # fmt: skip
EXPERTS, *OTHERS = (
    config_of(DecoderSizes(**SIZES, intermediate_size=512, **own))
    for own in (
        {**ROUTED, **GROUPED},
        {**MODERN, **GROUPED, "qkv_bias": True},
        {**MODERN, **GROUPED, "qk_norm": True, "head_dim": 48},
        {**ROUTED, **GROUPED, "qk_norm": True},
        {**SHARED, **GROUPED},
        {**SHARED, **GROUPED, "qk_norm": True, "qkv_bias": True},
        {**SHARED, **LATENT},
        {"positions": 2048},
        {"learned_positions": False, "tied": False},
    )
)
MODELS = [LLAMA, EXPERTS, *OTHERS]
"""One model of each architecture that Megatron-LM's arguments are read as."""

ADAPTERS = [
    Adapters(rank=1),
    Adapters(rank=16, targets=("q_proj", "v_proj"), base="nf4", dora=True),
    Adapters(rank=64, targets=("k_proj", "o_proj", "q_proj", "v_proj"), base="nf4", dropout=0.1),
]
PLAIN = [one for one in ADAPTERS if not one.dora]
NAMED = {"ADAPTERS": ADAPTERS, "PLAIN": PLAIN, "MODELS": MODELS, "LLAMA": [LLAMA]}
DATA = yaml.safe_load((Path(__file__).parents[2] / "data" / "expressed.yaml").read_text())
EXPRESSED = {
    name: {
        field: [
            tuple(one) if isinstance(one, list) else one
            for value in values
            for one in (NAMED.get(value, [value]) if isinstance(value, str) else [value])
        ]
        for field, values in [*((one, DATA["usual"][one]) for one in usual.split()), *others.items()]
    }
    for name, (usual, others) in ((name, (own.pop("usual"), own)) for name, own in DATA["frameworks"].items())
}


def fields_of(question):
    return replace(question, keys=(), origins={})


@pytest.mark.parametrize("name", frameworks())
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_what_is_written_is_recognised_and_read_back(name, data):
    values = {field: data.draw(st.sampled_from(allowed)) for field, allowed in EXPRESSED[name].items()}
    of_megatron = name in ("megatron", "megatron_bridge", "nemo")
    if values.get("sequence_parallel") and of_megatron:
        values["sequence_parallel"] = values["tp"] > 1  # Megatron-LM switches it off with one rank
    if values.get("recompute_modules") and values["recompute"] != "selective":
        values["recompute_modules"] = ()  # Megatron-LM reads them with selective recompute alone
    if name in ("hugging_face", "llama_factory", "ms_swift"):  # one key has both
        values["fused_layers"] = values["fused_loss"]
    if name == "llama_factory" and values["sharing"] == "fsdp2":
        values["reentrant"] = False
    if name == "trl" and values["fused_layers"]:
        values["fused_loss"] = True
    if of_megatron and values["ep"] == 1:
        values["dispatcher"] = "alltoall"  # of experts alone
    if of_megatron and values["precision"] == "fp32":
        values["attention"] = "explicit"  # Transformer Engine's others are of 16 bits
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
    "grouped_experts": ({"ep": 2, "config": EXPERTS}, False),
    "etp": ({"tp": 4, "ep": 2, "config": EXPERTS}, 2),
    "virtual_stages": ({"pp": 2, "schedule": "interleaved1f1b"}, 4),
    "zero": ({"sharing": "fsdp2"}, 3),
    "optimizer": ({}, "sgd_momentum"),
    "micro_batch_group": ({"pp": 2, "virtual_stages": 2, "schedule": "interleaved1f1b"}, 4),
    "deferred_head_gradients": ({"pp": 2}, 0),
    "capacity_factor": ({"ep": 2, "config": EXPERTS, "imbalance": 1.5}, 1.5),
    "imbalance": ({"ep": 2, "config": EXPERTS}, 1.0),
}


@pytest.mark.parametrize("name", ["megatron", "megatron_bridge"])
def test_what_only_megatron_has_is_written_and_read_back(name):
    for field, (others, value) in MEGATRON_ALONE.items():
        own = {"format": name, "sharing": "megatron", "config": LLAMA, **others, field: value}
        text = write_own(question_of(**own), name)
        read = read_own_text(text, name, framework_named(name).suffix or ".sh")
        assert getattr(read, field) == value, field


INEXPRESSIBLE = {
    "axolotl": {"pp": 2, "recompute": "selective"},
    "hugging_face": {"ep": 2, "precision": "fp8", "recompute": "selective"},
    "trl": {"ep": 2, "precision": "fp8", "recompute": "selective"},
    "llama_factory_v1": {"tp": 2, "fused_loss": True, "states": "bf16", "precision": "fp16"},
    "accelerate": {"pp": 4},
    "deepspeed": {"cp": 2, "offload": ("activations",)},
    "megatron": {"adapters": Adapters(rank=8), "states": "bf16"},
    "megatron_bridge": {"precision": "fp32"},
    "nemo": {"precision": "mxfp8", "adapters": Adapters(rank=8)},
    "llama_factory": {"offload": ("activations",)},
    "llm_foundry": {"cp": 2, "compile": True},
    "torchtune": {"pp": 2, "precision": "mxfp8"},
    "torchtitan": {"precision": "fp16", "adapters": Adapters(rank=8)},
    "litgpt": {"tp": 2, "precision": "fp8", "adapters": Adapters(rank=8, targets=("q_proj",))},
    "olmo_core": {"adapters": Adapters(rank=8), "states": "bf16", "offload": ("optimizer",)},
    "verl": {"precision": "fp8", "adapters": Adapters(rank=8, base="nf4"), "pp": 2, "ep": 2},
    "openrlhf": {"precision": "fp8", "pp": 2, "offload": ("optimizer", "parameters")},
    "ms_swift": {"precision": "fp8", "pp": 2, "offload": ("activations",)},
    "nanotron": {"zero": 3, "virtual_stages": 2, "recompute": "selective"},
}


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_a_file_cannot_express_is_refused_and_named(name):
    own = {
        "nanotron": {"sharing": "nanotron", "zero": 1},
        "openrlhf": {"sharing": "zero"},
        "llm_foundry": {"sharing": "fsdp1", "global_batch_size": 8},
    }
    fields = {"sharing": "fsdp2", "zero": 3, "dp": 8, "model_name": "llama-2-7b", "optimizer": "adamw"}
    fields |= own.get(name, {})
    for field, value in INEXPRESSIBLE[name].items():
        question = question_of(**{**fields, field: value})
        line = refused(lambda question=question: write_own(question, name), "")
        assert field in line or str(value) in line or str(next(iter(value), "")) in line


def test_every_field_of_a_recipe_and_layout_is_written_by_some_framework():
    """A field that no file carries would be dropped silently on the way from one framework to another."""
    assert set(EXPRESSED) == set(INEXPRESSIBLE) == set(frameworks())
    carried = set().union(*EXPRESSED.values()) | set(MEGATRON_ALONE)
    of_the_command = {"device", "memory_B", "gpus_per_node", "network_B_per_s", "network", "search", "torch"}
    of_the_command |= {"model_code"}
    of_reading = {"format", "framework", "model_source", "origins", "keys", "techniques", "program"}
    tried_elsewhere = {"layers_per_stage", "shard_size", "recompute_every", "expandable_segments"}
    read_alone = {"objective", "forward_passes", "reference_weight_B", "rollout", "shorter"}  # other trainers
    read_alone |= {
        "replicated_experts",
        "loss_in_place",
        "of_micro_batch",
    }  # of a published run alone
    assert set(DEFAULTS) - of_the_command - of_reading - tried_elsewhere - read_alone == carried
