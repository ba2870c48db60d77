"""A shape is read from a config.json without transformers, and is that of transformers' own config class."""

from __future__ import annotations

import random
from typing import Any

import pytest

from harness.records import Unavailable
from suites.training.layouts.config_classes import rows
from suites.training.layouts.shape_of_config import ARCHITECTURES, shape_of_config, shape_of_parsed

CONFIGS_OF_A_TYPE = 8

SIZES = {
    "num_hidden_layers": (1, 2, 3, 7, 24),
    "num_attention_heads": (1, 2, 4, 8, 16),
    "hidden_size": (64, 256, 768, 1024),
    "num_key_value_heads": (1, 2, 4),
    "head_dim": (16, 24),
}
"""Values of sizes, which keep most configs possible; others are any of their type."""

SELDOM_FIELDS = ("head_dim", "num_key_value_heads", "sliding_window_pattern", "layer_types")
"""Keys that configs have of architectures whose class has no such field, too."""

WHOLE = (0, 1, 2, 3, 8, 64, 1000)


def random_value(name: str, kind: str, chance: random.Random) -> Any:
    """Return a value of a field's type."""
    if name in SIZES:
        return chance.choice(SIZES[name])
    values = {
        "int": chance.choice(WHOLE),
        "float": chance.choice((0.0, 0.1, 0.5, 4.0)),
        "bool": chance.random() < 0.5,
        "str": "silu",
        "null": None,
        "dict": {"rope_type": "default", "rope_theta": 10000.0},
    }
    return values.get(kind)


def random_config(model_type: str, chance: random.Random) -> dict[str, Any]:
    """Return a config with some keys left out, set to null, given by another name, or of another type."""
    row = rows()[model_type]
    other_names = {name: alias for alias, name in row.get("renames", {}).items()}
    config: dict[str, Any] = {"model_type": model_type}
    kinds_of = {**dict.fromkeys(SELDOM_FIELDS, "int|null"), **row["kinds"]}
    for name, kinds_of_name in kinds_of.items():
        if chance.random() < 0.6 or "rope" in name:
            continue
        kinds = kinds_of_name.split("|")
        kind = chance.choice(kinds) if chance.random() < 0.98 else chance.choice(("int", "null", "str"))
        config[other_names.get(name, name) if chance.random() < 0.5 else name] = random_value(
            name, kind, chance
        )
    if chance.random() < 0.2:
        count = int(config.get("num_hidden_layers") or row["defaults"].get("num_hidden_layers") or 4)
        kinds_of_layers = ("sliding_attention", "full_attention", "chunked_attention")
        config["layer_types"] = [chance.choice(kinds_of_layers) for _ in range(count)]
    if chance.random() < 0.2:
        config |= {
            "dtype": "bfloat16",
            "architectures": ["X"],
            "quantization_config": {"bits": 4},
            "n_embed": 64,
        }
    return config


def shape_or_none(read: Any, config: dict[str, Any]) -> Any:
    try:
        return read(config)
    except Unavailable:
        return None


def by_transformers(config: dict[str, Any]) -> Any:
    from suites.training.models.huggingface_config import parse

    parsed = parse(config)
    try:
        return shape_of_parsed(parsed)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unavailable(" ".join(str(error).split())) from error


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="the extra `hf` brings it")


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("model_type", sorted(rows().keys() - {""}))
def test_a_class_s_defaults_give_the_same_shape(model_type: str):
    config = {"model_type": model_type}
    assert shape_or_none(shape_of_config, config) == shape_or_none(by_transformers, config)


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_configs_of_any_keys_give_the_same_shape(model_type: str):
    chance = random.Random(model_type)
    for _ in range(CONFIGS_OF_A_TYPE):
        config = random_config(model_type, chance)
        assert shape_or_none(shape_of_config, config) == shape_or_none(by_transformers, config), config


def test_the_table_is_that_of_the_installed_version(transformers: Any):
    from config_table import rows as rows_now

    if transformers.__version__ != rows()[""]["transformers"]:
        pytest.skip(f"the table is of transformers {rows()['']['transformers']}")
    assert list(rows_now()) == list(rows().values())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"hidden_size": "x"}, 'hidden_size is "x"; it must be a whole number'),
        ({"num_attention_heads": None}, "num_attention_heads is null"),
        ({"rms_norm_eps": 1}, "a number with a decimal point, as 1.0"),
        ({"hidden_size": 65, "num_attention_heads": 4}, "not a multiple of the number of attention heads"),
        ({"num_attention_heads": 0}, "config.json of model_type 'llama'"),
        ({"num_hidden_layers": 0}, "does not state its number of layers"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"rope_parameters": 3}, "rope_parameters is 3; it must be an object"),
        ({"model_type": "mamba"}, "model_type 'mamba': layouts are answered for"),
        ({"model_type": None}, "model_type"),
    ],
)
def test_a_wrong_key_is_named_in_one_line(keys: dict[str, Any], says: str):
    with pytest.raises(Unavailable) as raised:
        shape_of_config({"model_type": "llama", **keys})
    assert says in str(raised.value)
    assert len(str(raised.value)) <= 300
    assert "\n" not in str(raised.value)


def test_a_text_section_is_read_as_its_own_model():
    text = {"model_type": "qwen3", "num_hidden_layers": 3}
    assert shape_of_config({"model_type": "qianfan_ocr", "text_config": text}) == shape_of_config(text)
