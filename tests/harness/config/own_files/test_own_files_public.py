"""Public files of each framework, as facts: the keys that they set, and what was read by hand out of them.

tests/data/own_files has a file per format: `from` names the public file, `keys` are its values, `expect` are
the fields of OwnSetup that differ from their defaults, and `named` are keys that change memory or speed and
are not modelled.
"""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from harness.config.own_files.read import FORMATS, read_own_text
from harness.config.own_files.setup import Adapters, OwnSetup
from harness.config.own_files.table import nested

DATA = Path(__file__).parents[3] / "data" / "own_files"
FILES = [(path.stem, one) for path in sorted(DATA.glob("*.yaml")) for one in yaml.safe_load(path.read_text())]
DEFAULTS = {one.name: one.default for one in fields(OwnSetup)}
LISTS = {"understood", "not_understood", "irrelevant", "defaults"}
SECTIONS = {
    "global_batch_size": "train",
    "micro_batch_size": "train",
    "devices": "trainer",
    "num_nodes": "trainer",
    "precision": "trainer",
    "use_distributed_optimizer": "ddp",
}


def text_of(name, keys):
    """Return the keys as a file of that framework, with its suffix."""
    if name == "torchtitan":
        return "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ".toml"
    if name == "deepspeed":
        return json.dumps(nested(keys)), ".json"
    if name == "megatron":
        launch = [f"--{k.split('.')[1]} {v}" for k, v in keys.items() if k.startswith("launcher.")]
        words = [
            f"--{k}" + ("" if v is True else f" '{v}'")
            for k, v in keys.items()
            if "." not in k and v is not False
        ]
        return " \\\n  ".join(["torchrun", *launch, "pretrain_gpt.py", *words]), ".sh"
    if name == "megatron_bridge":
        keys = {f"{SECTIONS.get(key, 'model')}.{key}": value for key, value in keys.items()}
    return yaml.safe_dump(nested(keys)), ".yaml"


def plain(value):
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize(("name", "one"), FILES, ids=[one["from"].split(", ")[-1] for _, one in FILES])
def test_a_public_file_is_read_as_by_hand(name, one):
    text, suffix = text_of(name, one["keys"])
    setup = read_own_text(text, suffix=suffix)
    assert setup.format == name
    expected = {field: plain(value) for field, value in one["expect"].items()}
    if "adapters" in expected:
        given = dict(expected["adapters"])
        expected["adapters"] = Adapters(**{**given, "targets": tuple(given["targets"])})
    left = {"format", "framework", "model_source", *LISTS, *({"model"} - expected.keys())}
    assert {k: v for k, v in vars_of(setup).items() if k not in left and v != DEFAULTS[k]} == expected
    assert sorted(entry.key for entry in setup.not_understood) == sorted(one["named"])


def vars_of(setup):
    return {one.name: getattr(setup, one.name) for one in fields(setup)}


def test_at_least_five_public_files_per_format_are_read():
    counts = {name: sum(one == name for one, _ in FILES) for name in FORMATS}
    assert all(count >= 5 for name, count in counts.items()), counts
