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

REFUSED = "opt-350m"
"""A published config whose embedding has another size, which layouts are not answered for."""

COVERED = [name for name in NAMES if parse(published(name)).model_type in ARCHITECTURES and name != REFUSED]


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
    "pad_token_id": 0,
}
NEEDED: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": {"q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 8},
    "helium": {"head_dim": 16, "num_key_value_heads": 4},
    "hunyuan_v1_dense": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
}
"""Values without which transformers cannot build an architecture so small, or at all."""

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("cohere", {"use_qk_norm": True, "attention_bias": True}),
    ("deepseek_v3", {"attention_bias": True, "first_k_dense_replace": 1}),
    ("ernie4_5", {"use_bias": True}),
    ("ernie4_5_moe", {"moe_layer_start_index": 1, "moe_layer_end_index": 2, "use_bias": True}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    ("falcon", {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}),
    ("falcon", {"tie_word_embeddings": False, "ffn_hidden_size": 96}),
    ("glm", {"attention_bias": False}),
    ("glm4_moe", {"attention_bias": True, "use_qk_norm": True}),
    ("gpt_bigcode", {"multi_query": False}),
    ("gpt_neox", {"attention_bias": False}),
    ("granitemoeshared", {"shared_intermediate_size": 48, "attention_bias": True}),
    ("hyperclovax", {"use_post_norm": False}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "num_key_value_heads": 2}),
    ("llama4_text", {"interleave_moe_layer_step": 2}),
    ("minimax_m2", {"head_dim": 24, "num_key_value_heads": 2}),
    ("mpt", {"tie_word_embeddings": False}),
    ("opt", {"enable_bias": False, "ffn_dim": 96}),
    ("persimmon", {"qk_layernorm": False}),
    ("phi", {"qk_layernorm": True, "num_key_value_heads": 2}),
    ("phimoe", {"lm_head_bias": True, "attention_bias": True}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    ("seed_oss", {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}),
    ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True, "qk_layernorm": True}),
    ("starcoder2", {"use_bias": False}),
]
"""Architectures with values by which their parameters differ from those of the defaults."""


def parsed_small(model_type: str, **changes: Any) -> Any:
    return parse({"model_type": model_type, **SMALL, **NEEDED.get(model_type, {}), **changes})


@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_each_architecture_has_the_parameters_of_its_model(model_type: str):
    parsed = parsed_small(model_type)
    assert shape_of_parsed(parsed).parameters == parameters_of_model(parsed)


@pytest.mark.parametrize(("model_type", "changes"), VARIANTS, ids=str)
def test_variants_have_the_parameters_of_their_model(model_type: str, changes: dict[str, Any]):
    parsed = parsed_small(model_type, **changes)
    assert shape_of_parsed(parsed).parameters == parameters_of_model(parsed)
    assert shape_of_parsed(parsed).parameters != shape_of_parsed(parsed_small(model_type)).parameters


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba': layouts are answered for "),
        (published(REFUSED), "opt: word_embed_proj_dim=512, do_layer_norm_before=False: layouts are"),
    ],
)
def test_other_architectures_are_refused_in_one_line(config: dict[str, Any], says: str):
    with pytest.raises(Unavailable) as raised:
        shape_of_config(config)
    assert says in str(raised.value)
    assert len(str(raised.value)) <= 300
