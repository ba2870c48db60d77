"""The tables of keys: each key is understood, each unknown one is named, none is dropped or listed twice."""

from pathlib import Path
from typing import get_args

import pytest
import yaml

from harness.frameworks.read import read_own_text, read_values
from harness.frameworks.table import DEFAULTS, framework_named, frameworks
from harness.question import Direction

DATA = yaml.safe_load((Path(__file__).parents[2] / "data" / "expressed.yaml").read_text())
NEEDED, COMPANIONS, VALUES = DATA["needed"], DATA["companions"], DATA["values"]
LEFT_OUT = {"distributed_type"}
"""Keys whose value here is not modelled, next to those that take any word."""


def value_for(name, key, row):
    """Return a value that a key can have, and other keys that it needs."""
    companions = COMPANIONS.get(f"{name} {key}", {})
    if "offload" in key and "zero_optimization" in key:
        companions = {f"{key.partition('zero_optimization')[0]}zero_optimization.stage": 3}
    if (name, key) == ("megatron_bridge", "fsdp"):
        return True, companions
    if row.words is not None:
        return next(theirs for ours, theirs in row.words.items() if ours is not None), companions
    kinds = {"count": 2, "int": 2, "number": 2.0, "flag": True, "any": "x", "text": str(row.default or "x")}
    return VALUES.get(key, kinds[row.kind]), companions


@pytest.mark.parametrize("name", frameworks())
def test_every_key_of_a_table_is_understood(name):
    """One file per key: the key is understood, or its value is left out with a reason."""
    for key, row in framework_named(name).keys.items():
        value, companions = value_for(name, key, row)
        flat = {**NEEDED.get(name, {}), **companions, key: value}
        statuses = [one.status for one in read_values(flat, framework_named(name)).keys if one.key == key]
        assert statuses in (["understood"], ["not modelled"]), key
        assert statuses == ["understood"] or value == "x" or key in LEFT_OUT, key


@pytest.mark.parametrize("name", frameworks())
def test_every_row_of_a_table_decides_fields_and_has_a_meaning(name):
    table = framework_named(name)
    for key, row in table.keys.items():
        assert set(row.of.split()) <= set(DEFAULTS), key
        assert row.of, key
        assert row.field in DEFAULTS or row.field.startswith("_"), key
        assert row.means, key
        assert row.kind in ("count", "int", "number", "flag", "text", "any"), key
    for pattern, matter in table.matters.items():
        assert {matter.memory, matter.seconds} <= set(get_args(Direction)), pattern
        assert matter.means, pattern
        assert matter.source or {matter.memory, matter.seconds} <= {"either", "none"}, pattern
    assert not table.renamed.keys() & table.keys.keys()
    assert table.expresses.keys() | table.assumed.keys() <= set(DEFAULTS)
    of_values = [pattern.partition("=") for pattern in table.matters if "=" in pattern]
    assert all(value == value.lower() for key, _, value in of_values if key in table.keys)


def test_a_value_that_is_not_modelled_is_named_and_its_key_decides():
    question = read_own_text("model_name_or_path: gpt2\nstage: dpo\ncutoff_len: 8\n", suffix=".yaml")
    (one,) = [entry for entry in question.keys if entry.key == "stage"]
    assert (one.value, one.status, one.memory, one.seconds) == ("dpo", "not modelled", "raises", "raises")


@pytest.mark.parametrize("name", frameworks())
def test_an_unknown_key_is_named_and_never_dropped(name):
    flat = {**NEEDED.get(name, {}), "a_key_that_nobody_has": 7}
    question = read_values(flat, framework_named(name))
    (one,) = [entry for entry in question.keys if entry.key == "a_key_that_nobody_has"]
    assert (one.value, one.status, one.memory, one.seconds) == (7, "not modelled", "none", "none")
    assert question.framework in one.means


def test_every_key_of_a_file_has_one_class_and_what_is_not_modelled_its_direction():
    text = (
        "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ntiled_mlp: true\nlearning_rate: 1e-5\n"
        "new_key: 1\noptimizer: paged_adamw_8bit\nrl: dpo\nflash_attn_cross_entropy: false\n"
    )
    question = read_own_text(text, suffix=".yaml")
    classes = {
        one.key: (one.status, one.memory, one.seconds) for one in question.keys if one.status != "default"
    }
    assert classes == {
        "base_model": ("understood", "none", "none"),
        "sequence_len": ("understood", "none", "none"),
        "learning_rate": ("irrelevant", "none", "none"),
        "flash_attn_cross_entropy": ("irrelevant", "none", "none"),
        "tiled_mlp": ("not modelled", "lowers", "raises"),
        "optimizer": ("not modelled", "lowers", "raises"),
        "rl": ("not modelled", "raises", "raises"),
        "new_key": ("not modelled", "none", "none"),
    }
    assert len({one.key for one in question.keys}) == len(question.keys)


def test_fields_carry_their_key_or_the_frameworks_default_or_why_they_are_assumed():
    text = "[model]\nname='llama3'\nflavor='8B'\n[activation_checkpoint]\nmode='full'\n"
    question = read_own_text(text, suffix=".toml")
    assert question.origin("recompute") == ("key", "activation_checkpoint.mode")
    assert question.origin("config") == ("key", "model.name, model.flavor")
    assert question.origin("micro_batch_size") == ("default", "torchtitan v0.2.2")
    assert question.origin("sharing") == ("default", "torchtitan v0.2.2")
    assert question.origin("fused_loss").kind == "assumption"
    assert {one.key: one.value for one in question.keys if one.status == "default"}[
        "training.local_batch_size"
    ] == 8
    assumed = read_own_text('{"zero_optimization": {"stage": 1}}', suffix=".json").origin("micro_batch_size")
    assert assumed.kind == "assumption"
    assert "train_micro_batch_size_per_gpu" in assumed.of
