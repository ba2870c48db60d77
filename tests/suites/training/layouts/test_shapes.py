"""Shapes from config.json files: as of transformers' own config classes, with its models' parameters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.records import Unavailable
from suites.training.layouts.config_classes import rows
from suites.training.layouts.shape_of_config import (
    ARCHITECTURES,
    shape_of_config,
    shape_of_parsed,
    shape_without_type,
)


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


@pytest.mark.parametrize("model_type", sorted(rows().keys() - {""}))
def test_a_class_s_defaults_give_the_same_shape_as_transformers_own(model_type: str):
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    config = {"model_type": model_type}
    assert shape_or_none(shape_of_config, config) == shape_or_none(by_transformers, config)


def test_the_table_is_that_of_the_installed_version():
    transformers = pytest.importorskip("transformers", reason="the extra `hf` brings it")
    from config_table import rows as rows_now

    if transformers.__version__ != rows()[""]["transformers"]:
        pytest.skip(f"the table is of transformers {rows()['']['transformers']}")
    assert list(rows_now()) == list(rows().values())


WRONG = [
    ("llama", "hidden_size", "x"),
    ("llama", "num_attention_heads", None),
    ("llama", "rms_norm_eps", 1),
    ("llama", "layer_types", ["full_attention"]),
    ("llama", "rope_parameters", 3),
    ("mamba", "model_type", "mamba"),
    ("opt", "word_embed_proj_dim", 512),
    ("kimi_linear", "linear_attn_config", [1]),
    ("kimi_linear", "first_k_dense_replace", "x"),
    ("kimi_linear", "linear_attn_config", {"num_heads": 0}),
    ("nemotron_h", "hybrid_override_pattern", "MX*"),
    ("nemotron_h", "mamba_num_heads", 0),
    ("nemotron_h", "n_groups", 7),
    ("qwen3_next", "full_attention_interval", -3),
    ("qwen3_next", "linear_num_value_heads", 0),
    ("jamba", "attn_layer_period", 0),
    ("jamba", "attn_layer_offset", 8),
    ("minimax", "attn_type_list", [0] * 32),
]


@pytest.mark.parametrize(("model_type", "key", "value"), WRONG, ids=str)
def test_a_wrong_key_is_named_in_one_line(model_type: str, key: str, value: Any):
    with pytest.raises(Unavailable) as raised:
        shape_of_config({"model_type": model_type, key: value})
    said = str(raised.value)
    assert (next(iter(value)) if isinstance(value, dict) else key) in said
    assert len(said) <= 300
    assert "\n" not in said


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"hidden_size": "x"}, 'hidden_size is "x"'),
        ({"hybrid_layer_pattern": "MX"}, 'hybrid_layer_pattern is "MX"'),
        ({"hybrid_layer_pattern": "M*M"}, "hybrid_layer_pattern has 3 layers and num_hidden_layers is 2"),
        ({"hybrid_layer_pattern": "M*"}, "mamba_num_heads is missing, which hybrid_layer_pattern needs"),
    ],
)
def test_a_wrong_size_without_an_architecture_is_named(keys: dict[str, Any], says: str):
    with pytest.raises(Unavailable, match=f"^{re.escape(f'model: {says}')}"):
        shape_without_type({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, **keys})


def test_a_text_section_is_read_as_its_own_model():
    text = {"model_type": "qwen3", "num_hidden_layers": 3}
    assert shape_of_config({"model_type": "qianfan_ocr", "text_config": text}) == shape_of_config(text)


SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 320,
         "pad_token_id": 0}  # fmt: skip
LINES = Path(__file__).with_name("small_shapes.jsonl").read_text().splitlines()
NEEDED = {row["model_type"]: row["needed"] for row in map(json.loads, LINES) if "needed" in row}
"""Values without which transformers cannot build an architecture so small, or at all."""
VARIANTS = [(row["model_type"], row["variant"]) for row in map(json.loads, LINES) if "variant" in row]
"""Values by which an architecture's parameters differ from those of its defaults."""


@pytest.mark.parametrize(
    ("model_type", "changes"), [*((name, {}) for name in sorted(ARCHITECTURES)), *VARIANTS], ids=str
)
def test_each_architecture_has_the_parameters_of_its_model(model_type, changes):
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    from suites.training.models.huggingface_config import causal_class, parse

    usual = {"model_type": model_type, **SMALL, **NEEDED.get(model_type, {})}
    parsed = parse(usual | changes)
    with torch.device("meta"):
        model = causal_class(parsed)._from_config(parsed)
    assert shape_of_config(usual | changes) == shape_of_parsed(parsed)
    assert shape_of_parsed(parsed).parameters == sum(one.numel() for one in model.parameters())
    if changes:
        assert shape_of_parsed(parsed).parameters != shape_of_parsed(parse(usual)).parameters
