"""Shapes from config.json files: their parameters are those of transformers' own models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from real_configs import NAMES, published

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.records import Unavailable
from suites.training.layouts.shape_of_config import ARCHITECTURES, shape_of_config, shape_of_parsed
from suites.training.models.huggingface_config import causal_class, parse

COVERED = [name for name in NAMES if parse(published(name)).model_type in ARCHITECTURES]


def parameters_of_model(parsed: Any) -> int:
    """Return the parameters of transformers' own model, tied ones once."""
    with torch.device("meta"):
        model = causal_class(parsed)._from_config(parsed)
    return sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize("name", COVERED)
def test_published_configs_have_the_parameters_of_their_model(name: str):
    parsed = parse(published(name))
    assert shape_of_parsed(parsed).parameters == parameters_of_model(parsed)


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 320,
}
OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12},
    "phi3": {"pad_token_id": 0},
    "smollm3": {"pad_token_id": 0},
    "qwen2_moe": {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "llama4_text": {"interleave_moe_layer_step": 2},
    "starcoder2": {"use_bias": False},
    "llama": {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "num_key_value_heads": 2},
    "glm4_moe": {"attention_bias": True, "use_qk_norm": True},
}
"""Values by which an architecture differs from its defaults here."""


@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_each_architecture_has_the_parameters_of_its_model(model_type: str):
    parsed = parse({"model_type": model_type, **SMALL, **OWN.get(model_type, {})})
    assert shape_of_parsed(parsed).parameters == parameters_of_model(parsed)


def test_other_architectures_are_refused_by_name():
    with pytest.raises(Unavailable, match=r"model_type 'mamba': layouts are answered for .* llama, .*"):
        shape_of_config({"model_type": "mamba"})
