"""The tables of keys: each key is understood, each unknown one is named; public files are read as by hand.

tests/data/frameworks has a file per framework: `from` names the public file, `keys` are its values, `expect`
are the fields of Question that differ from their defaults, and `named` are keys that are not modelled.
"""

import json
from pathlib import Path

import pytest
import yaml

from harness.frameworks.read import read_own_text, read_values
from harness.frameworks.table import DEFAULTS, framework_named, frameworks, nested
from harness.question import Adapters

DATA = Path(__file__).parents[2] / "data"
EXPRESSED = yaml.safe_load((DATA / "expressed.yaml").read_text())
NEEDED, COMPANIONS, VALUES = EXPRESSED["needed"], EXPRESSED["companions"], EXPRESSED["values"]
LEFT_OUT = {
    *("distributed_type", "rl", "sample_packing", "sequence_parallel_size", "ds.ring_attn_size"),
    *("reward_model", "process_reward_model"),
    *("engine.ulysses_sequence_parallel_size", "parallelism_config.sp_size", "step_batch_size_schedule"),
}
"""Keys whose value here is not modelled, next to those that take any word."""


def value_for(name, key, row):
    """Return a value that a key can have, and other keys that it needs."""
    companions = COMPANIONS.get(f"{name} {key}", {})
    if key.startswith("mamba_"):
        companions = {"hybrid_layer_pattern": "M*"}
    if "offload" in key and "zero_optimization" in key:
        companions = {f"{key.partition('zero_optimization')[0]}zero_optimization.stage": 3}
    if (name, key) == ("nemo", "fsdp"):
        return True, companions
    if row.words is not None:
        return next(theirs for ours, theirs in row.words.items() if ours is not None), companions
    kinds = {"count": 2, "int": 2, "number": 2.0, "flag": True, "any": "x", "text": str(row.default or "x")}
    kinds["optimizer"] = row.default or "x"
    return VALUES.get(f"{name} {key}", VALUES.get(key, kinds[row.kind])), companions


@pytest.mark.parametrize("name", frameworks())
def test_every_key_of_a_table_is_understood_and_another_is_named(name):
    """One file per key: the key is understood, or its value is left out with a reason."""
    needed = NEEDED.get(name, {})
    for key, row in framework_named(name).keys.items():
        value, companions = value_for(name, key, row)
        flat = {**needed, **companions, key: value}
        statuses = [one.status for one in read_values(flat, framework_named(name)).keys if one.key == key]
        assert statuses in (["understood"], ["not modelled"]), key
        assert statuses == ["understood"] or value == "x" or key in LEFT_OUT, key
    own = {"a_key_that_nobody_has": 7, "_note.of_a_key": "a file's own words"}
    unknown = read_values({**needed, **own}, framework_named(name))
    assert [one.status for one in unknown.keys if one.key == "_note.of_a_key"] == ["irrelevant"]
    (one,) = [entry for entry in unknown.keys if entry.key == "a_key_that_nobody_has"]
    assert (one.value, one.status, one.memory, one.seconds) == (7, "not modelled", "none", "none")
    assert unknown.framework in one.means


CLASSES = {
    "base_model": ("understood", "none", "none"),
    "rl": ("understood", "none", "none"),
    "learning_rate": ("irrelevant", "none", "none"),
    "flash_attn_cross_entropy": ("irrelevant", "none", "none"),  # of this value
    "tiled_mlp": ("not modelled", "lowers", "raises"),
    "optimizer": ("not modelled", "lowers", "raises"),
    "new_key": ("not modelled", "none", "none"),
}


def test_every_key_of_a_file_has_one_class_and_what_is_not_modelled_its_direction():
    text = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ntiled_mlp: true\nlearning_rate: 1e-5\n"
    text += "new_key: 1\noptimizer: paged_adamw_8bit\nrl: dpo\nflash_attn_cross_entropy: false\n"
    keys = read_own_text(text, suffix=".yaml").keys
    assert {one.key: (one.status, one.memory, one.seconds) for one in keys if one.key in CLASSES} == CLASSES
    assert len({one.key for one in keys}) == len(keys)


FILES = [
    (path.stem, one)
    for path in sorted((DATA / "frameworks").glob("*.yaml"))
    for one in yaml.safe_load(path.read_text())
]
SECTIONS = {
    **dict.fromkeys(("global_batch_size", "micro_batch_size"), "train"),
    **dict.fromkeys(("devices", "num_nodes", "precision"), "trainer"),
    "use_distributed_optimizer": "ddp",
}
OF_READING = {"format", "framework", "program", "model_source", "keys", "origins"}


def text_of(name, keys):
    """Return the keys as a file of that framework, with its suffix."""
    if name == "torchtitan":
        return "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ".toml"
    if name == "deepspeed":
        return json.dumps(nested(keys)), ".json"
    if name == "megatron":
        launch = [f"--{k.split('.')[1]} {v}" for k, v in keys.items() if k.startswith("launcher.")]
        options = {
            k: "" if v is True else f" '{v}'" for k, v in keys.items() if "." not in k and v is not False
        }
        words = [f"--{key}{value}" for key, value in options.items()]
        return " \\\n  ".join(["torchrun", *launch, "pretrain_gpt.py", *words]), ".sh"
    if name in ("megatron_bridge", "nemo"):
        sections = {key: one for key, one in SECTIONS.items() if (one == "trainer") == (name == "nemo")}
        keys = {f"{sections.get(key, 'model')}.{key}": value for key, value in keys.items()}
    return yaml.safe_dump(nested(keys)), ".yaml"


@pytest.mark.parametrize(("name", "one"), FILES, ids=[one["from"].split(", ")[-1] for _, one in FILES])
def test_a_public_file_is_read_as_by_hand(name, one):
    text, suffix = text_of(name, one["keys"])
    question = read_own_text(text, suffix=suffix)
    assert question.format == name
    expected = {field: tuple(v) if isinstance(v, list) else v for field, v in one["expect"].items()}
    if "adapters" in expected:
        given = {**expected["adapters"], "targets": tuple(expected["adapters"]["targets"])}
        expected["adapters"] = Adapters(**given)
    left = OF_READING | ({"config"} - expected.keys())
    read = {field: getattr(question, field) for field in DEFAULTS if field not in left}
    assert {field: value for field, value in read.items() if value != DEFAULTS[field]} == expected
    named = [one.key for one in question.keys if one.status == "not modelled"]
    assert sorted(named) == sorted(one["named"])


def test_what_is_irrelevant_of_one_value_wins_over_what_matters_of_the_key():
    text = "model: Qwen/Qwen3-0.6B\ndist_config: {name: fsdp2}\nmicro_batch_size: 1\ncp_size: 2\ncp_mode: "
    for mode, status in (("ulysses", "irrelevant"), ("ring", "not modelled")):
        keys = read_own_text(text + mode, "llama_factory_v1", ".yaml").keys
        assert [key.status for key in keys if key.key == "cp_mode"] == [status]


def test_the_longest_pattern_that_a_key_matches_names_it():
    text = "train_module: {rank_microbatch_size: 8}\nmodel: {capacity_factor: 1.05, freeze_params: [a], x: 1}"
    keys = {key.key: key for key in read_own_text(text, "olmo_core", ".yaml").keys}
    assert keys["model.capacity_factor"].means == "tokens beyond this many per expert are dropped"
    assert (keys["model.freeze_params"].memory, keys["model.x"].memory) == ("lowers", "either")


LIONS = {  # arXiv 2302.06675, algorithm 2: one moment per parameter
    "lion_32bit": ("sgd_momentum", "none", None),
    "lion_8bit": ("adamw_8bit", "lowers", pytest.approx(0.75, abs=0.01)),
    "paged_lion_8bit": ("adamw_8bit", "lowers", None),
}


@pytest.mark.parametrize("name", LIONS)
def test_lion_has_one_moment(name):
    text = f"base_model: Qwen/Qwen3-0.6B\nsequence_len: 512\nmicro_batch_size: 1\noptimizer: {name}\n"
    question = read_own_text(text, "axolotl", ".yaml")
    key, *wide = [key for key in question.keys if key.key == "optimizer"]
    assert (question.optimizer, key.memory, key.least) == LIONS[name]
    assert [one.memory for one in wide] == ["raises"] * (name == "lion_32bit")  # fp32, of bf16 weights
