"""Public files of each framework, as facts: the keys that they set, and what was read by hand out of them.

tests/data/frameworks has a file per framework: `from` names the public file, `keys` are its values, `expect`
are the fields of Question that differ from their defaults, and `named` are keys that are not modelled.
"""

import json
from pathlib import Path

import pytest
import yaml

from harness.frameworks.read import read_own_text
from harness.frameworks.table import DEFAULTS, frameworks, nested
from harness.question import Adapters

DATA = Path(__file__).parents[2] / "data" / "frameworks"
FILES = [(path.stem, one) for path in sorted(DATA.glob("*.yaml")) for one in yaml.safe_load(path.read_text())]
SECTIONS = {
    "global_batch_size": "train",
    "micro_batch_size": "train",
    "devices": "trainer",
    "num_nodes": "trainer",
    "precision": "trainer",
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
    if name == "megatron_bridge":
        keys = {f"{SECTIONS.get(key, 'model')}.{key}": value for key, value in keys.items()}
    return yaml.safe_dump(nested(keys)), ".yaml"


@pytest.mark.parametrize(("name", "one"), FILES, ids=[one["from"].split(", ")[-1] for _, one in FILES])
def test_a_public_file_is_read_as_by_hand(name, one):
    text, suffix = text_of(name, one["keys"])
    question = read_own_text(text, suffix=suffix)
    assert question.format == name
    expected = {field: tuple(v) if isinstance(v, list) else v for field, v in one["expect"].items()}
    if "adapters" in expected:
        given = dict(expected["adapters"])
        expected["adapters"] = Adapters(**{**given, "targets": tuple(given["targets"])})
    left = OF_READING | ({"config"} - expected.keys())
    read = {field: getattr(question, field) for field in DEFAULTS if field not in left}
    assert {field: value for field, value in read.items() if value != DEFAULTS[field]} == expected
    named = [one.key for one in question.keys if one.status == "not modelled"]
    assert sorted(named) == sorted(one["named"])


def test_at_least_five_public_files_per_framework_are_read():
    counts = {name: sum(one == name for one, _ in FILES) for name in frameworks()}
    assert all(count >= 5 for count in counts.values()), counts
