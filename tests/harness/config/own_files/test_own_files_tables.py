"""The tables of keys: each key is understood, each unknown one is named, none is dropped."""

from dataclasses import fields

import pytest

from harness.config.own_files.read import FORMATS, format_named, read_own_text
from harness.config.own_files.setup import OwnSetup
from harness.config.own_files.table import table_of, understand

LISTS = {"understood", "not_understood", "irrelevant", "defaults"}


@pytest.mark.parametrize("name", FORMATS)
def test_every_key_of_a_table_is_understood(name):
    """One file per key: the key is listed as understood and not as unknown."""
    for key, row in table_of(name).keys.items():
        value, companions = value_for(name, key, row)
        setup = read_flat(name, {**NEEDED.get(name, {}), **companions, key: value})
        assert key in [one.key for one in setup.understood], key
        assert key not in [one.key for one in setup.not_understood if one.why.startswith("no key of")], key


NEEDED = {
    "torchtune": {"model._component_": "torchtune.models.llama3_1.llama3_1_8b"},
    "nanotron": {
        "parallelism.dp": 1,
        "tokens.sequence_length": 128,
        "model.model_config.num_hidden_layers": 2,
        "model.model_config.hidden_size": 64,
        "model.model_config.num_attention_heads": 4,
        "model.model_config.vocab_size": 128,
    },
    "llm_foundry": {
        "model.name": "mpt_causal_lm",
        "model.d_model": 64,
        "model.n_heads": 4,
        "model.n_layers": 2,
        "device_train_microbatch_size": 1,
    },
    "megatron": {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 128,
        "seq_length": 128,
    },
    "megatron_bridge": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128},
    "axolotl": {"base_model": "meta-llama/Llama-3.1-8B", "lora_r": 8},
}


COMPANIONS = {
    ("axolotl", "load_in_4bit"): {"adapter": "qlora"},
    ("axolotl", "load_in_8bit"): {"adapter": "lora"},
    ("axolotl", "dp_shard_size"): {"fsdp_config.version": 2, "fsdp_config.reshard_after_forward": True},
}
VALUES = {
    "fsdp": "full_shard",
    "plugins": ["x"],
    "moe_layer_freq": 1,
    "fsdp_config.reshard_after_forward": True,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "recompute_granularity": "full",
    "moe_token_dispatcher_type": "alltoall",
    "quantization_bit": 4,
    "device_train_microbatch_size": 4,
    "activation_checkpoint.selective_ac_option": "op",
}


def value_for(name, key, row):
    """Return a value that a key can have, and other keys that it needs."""
    if "offload" in key and "zero_optimization" in key:
        companions = {f"{key.partition('zero_optimization')[0]}zero_optimization.stage": 3}
    else:
        companions = COMPANIONS.get((name, key), {})
    if name == "megatron_bridge" and key in ("mixed_precision", "fsdp"):
        return {"mixed_precision": "bf16_mixed", "fsdp": True}[key], companions
    if row.values is not None:
        return next(theirs for theirs in row.values if theirs not in (None, "")), companions
    kinds = {"count": 2, "int": 2, "number": 2.0, "flag": True, "any": "x", "text": str(row.default or "x")}
    return VALUES.get(key, kinds[row.kind]), companions


def read_flat(name, flat):
    return understand(flat, format_named(name))


@pytest.mark.parametrize("name", FORMATS)
def test_every_row_of_a_table_has_a_field_and_a_meaning(name):
    known = {one.name for one in fields(OwnSetup)} - LISTS
    for key, row in table_of(name).keys.items():
        assert row.field in known or row.field.startswith("_"), key
        assert len(row.means.split()) >= 1, key
        assert row.kind in ("count", "int", "number", "flag", "text", "any"), key
    for old, new in table_of(name).renamed.items():
        assert old not in table_of(name).keys, old
        assert new in table_of(name).keys or new.split(".")[0] or new in table_of(name).matters


@pytest.mark.parametrize("name", FORMATS)
def test_an_unknown_key_is_named_and_never_dropped(name):
    setup = read_flat(name, {**NEEDED.get(name, {}), "a_key_that_nobody_has": 7})
    (one,) = [entry for entry in setup.not_understood if entry.key == "a_key_that_nobody_has"]
    assert one.value == 7
    assert setup.framework in one.why


def test_every_key_of_a_file_is_in_one_of_the_lists():
    text = (
        "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ntiled_mlp: "
        "true\nlearning_rate: 1e-5\nnew_key: 1\n"
    )
    setup = read_own_text(text, suffix=".yaml")
    listed = [one.key for one in (*setup.understood, *setup.not_understood)] + list(setup.irrelevant)
    assert sorted(listed) == ["base_model", "learning_rate", "new_key", "sequence_len", "tiled_mlp"]
    assert [one.key for one in setup.not_understood] == ["tiled_mlp", "new_key"]


def test_defaults_that_are_filled_in_are_listed_with_their_version():
    setup = read_own_text(
        "[model]\nname='llama3'\nflavor='8B'\n[activation_checkpoint]\nmode='full'\n", suffix=".toml"
    )
    filled = {one.key: one.value for one in setup.defaults}
    assert filled["training.local_batch_size"] == 8
    assert setup.micro_batch_size == 8
    assert setup.framework == "torchtitan v0.2.2"
