"""The shape of a Hugging Face config.json, for architectures whose parameters are counted exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.records import Unavailable
from suites.training.layouts.shape import TransformerShape
from suites.training.models.huggingface_config import parse

Own = Mapping[str, Any]
"""Fields of a shape that an architecture has besides the sizes which all share."""


def shape_of_config(config: Mapping[str, Any]) -> TransformerShape:
    """Return the shape of a config.json's content; raises `Unavailable` for other architectures."""
    parsed = parse(config)
    return shape_of_parsed(parsed)


def shape_of_parsed(parsed: Any) -> TransformerShape:
    """Return the shape of transformers' own config object; raises `Unavailable` for other architectures."""
    if parsed.model_type not in ARCHITECTURES:
        raise Unavailable(
            f"model_type {parsed.model_type!r}: layouts are answered for {', '.join(sorted(ARCHITECTURES))}"
        )
    heads = parsed.num_attention_heads
    given: dict[str, Any] = {
        "num_hidden_layers": parsed.num_hidden_layers,
        "hidden_size": parsed.hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(parsed, "num_key_value_heads", None) or heads,
        "head_dim": head_dim(parsed),
        "intermediate_size": getattr(parsed, "intermediate_size", None) or 4 * parsed.hidden_size,
        "vocab_size": parsed.vocab_size,
        "tie_word_embeddings": bool(parsed.tie_word_embeddings),
        "attention_bias": bool(getattr(parsed, "attention_bias", False)),
    }
    shape = {**given, **windows(parsed), **ARCHITECTURES[parsed.model_type](parsed)}
    return TransformerShape(**shape)


def windows(parsed: Any) -> Own:
    """Return which layers see a window alone."""
    window = getattr(parsed, "sliding_window", None) or getattr(parsed, "attention_chunk_size", None)
    kinds = getattr(parsed, "layer_types", None) or []
    seen = tuple(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    if not window or not (any(seen) or (not kinds and parsed.model_type == "mistral")):
        return {}
    return {"sliding_window": int(window), "windowed_layers": seen}


def plain(_: Any) -> Own:
    """Return nothing: RMSNorm, SwiGLU, rotary embedding."""
    return {}


def qwen2(_: Any) -> Own:
    """Return biases of queries, keys and values."""
    return {"qkv_bias": True}


def qwen3(parsed: Any) -> Own:
    """Return norms of each head's queries and keys."""
    return {"qk_norm_size": 2 * head_dim(parsed)}


def head_dim(parsed: Any) -> int:
    """Return the size of a head, of which some configs state nothing."""
    return int(getattr(parsed, "head_dim", None) or parsed.hidden_size // parsed.num_attention_heads)


def olmo2(parsed: Any) -> Own:
    """Return norms of all queries and all keys."""
    head_dim = parsed.hidden_size // parsed.num_attention_heads
    return {"qk_norm_size": head_dim * (parsed.num_attention_heads + parsed.num_key_value_heads)}


def gemma2(_: Any) -> Own:
    """Return norms before and after each part."""
    return {"norms_per_layer": 4}


def gemma3(parsed: Any) -> Own:
    """Return norms before and after each part, and of each head's queries and keys."""
    return {"norms_per_layer": 4, **qwen3(parsed)}


def gpt2(parsed: Any) -> Own:
    """Return LayerNorm, GELU, biases and learned positions."""
    return {
        "layer_norm": True,
        "gated": False,
        "bias": True,
        "learned_positions": parsed.max_position_embeddings,
        "intermediate_size": parsed.n_inner or 4 * parsed.hidden_size,
        "dropout": float(parsed.resid_pdrop),
    }


def gpt_neox(parsed: Any) -> Own:
    """Return LayerNorm, GELU and biases."""
    dropout = float(parsed.hidden_dropout)
    return {"layer_norm": True, "gated": False, "bias": True, "attention_bias": False, "dropout": dropout}


def starcoder2(parsed: Any) -> Own:
    """Return LayerNorm and GELU, with biases where the config has them."""
    return {"layer_norm": True, "gated": False, "bias": bool(parsed.use_bias)}


def mixtral(parsed: Any) -> Own:
    """Return experts as wide as a dense MLP would be, in every layer."""
    return {
        "num_experts": parsed.num_local_experts,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.intermediate_size,
    }


def olmoe(parsed: Any) -> Own:
    """Return experts in every layer, with norms of all queries and all keys."""
    return {
        "num_experts": parsed.num_experts,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.intermediate_size,
        **olmo2(parsed),
    }


def gpt_oss(parsed: Any) -> Own:
    """Return experts with biases, and a sink per head."""
    return {**mixtral(parsed), "bias": True, "router_bias": True, "attention_sinks": True}


def qwen2_moe(parsed: Any) -> Own:
    """Return experts in each layer whose number a step divides, next to a gated shared MLP."""
    return {
        **_by_step(parsed),
        "qkv_bias": bool(getattr(parsed, "qkv_bias", True)),
        "shared_intermediate_size": parsed.shared_expert_intermediate_size,
        "shared_gate": True,
    }


def qwen3_moe(parsed: Any) -> Own:
    """Return experts in each layer whose number a step divides."""
    return {**_by_step(parsed), **qwen3(parsed)}


def _by_step(parsed: Any) -> Own:
    dense = set(parsed.mlp_only_layers or ())
    moe = tuple(
        layer not in dense and (layer + 1) % parsed.decoder_sparse_step == 0
        for layer in range(parsed.num_hidden_layers)
    )
    return {
        "num_experts": parsed.num_experts,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.moe_intermediate_size,
        "moe_layers": moe,
    }


def deepseek(parsed: Any) -> Own:
    """Return latent attention, dense first layers, and shared experts."""
    return {
        **_after_the_dense(parsed),
        "num_key_value_heads": parsed.num_attention_heads,
        "head_dim": parsed.qk_nope_head_dim + parsed.qk_rope_head_dim,
        "q_lora_rank": parsed.q_lora_rank or 0,
        "kv_lora_rank": parsed.kv_lora_rank,
        "qk_rope_head_dim": parsed.qk_rope_head_dim,
        "v_head_dim": parsed.v_head_dim,
        "num_nextn_predict_layers": getattr(parsed, "num_nextn_predict_layers", 0) or 0,
    }


def glm4_moe(parsed: Any) -> Own:
    """Return dense first layers and shared experts; `attention_bias` is of queries, keys and values."""
    return {
        **_after_the_dense(parsed),
        "attention_bias": False,
        "qkv_bias": bool(parsed.attention_bias),
        "qk_norm_size": 2 * head_dim(parsed) if parsed.use_qk_norm else 0,
    }


def _after_the_dense(parsed: Any) -> Own:
    dense = parsed.first_k_dense_replace
    return {
        "num_experts": parsed.n_routed_experts,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.moe_intermediate_size,
        "shared_intermediate_size": parsed.n_shared_experts * parsed.moe_intermediate_size,
        "moe_layers": tuple(layer >= dense for layer in range(parsed.num_hidden_layers)),
    }


def llama4(parsed: Any) -> Own:
    """Return a shared MLP as wide as an expert, and dense layers of another width."""
    return {
        "intermediate_size": parsed.intermediate_size_mlp,
        "num_experts": parsed.num_local_experts,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.intermediate_size,
        "shared_intermediate_size": parsed.intermediate_size,
        "moe_layers": tuple(layer in parsed.moe_layers for layer in range(parsed.num_hidden_layers)),
    }


ARCHITECTURES: Mapping[str, Callable[[Any], Own]] = {
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "gemma": plain,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "glm4_moe": glm4_moe,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "granite": plain,
    "llama": plain,
    "llama4_text": llama4,
    "mistral": plain,
    "mixtral": mixtral,
    "olmo2": olmo2,
    "olmoe": olmoe,
    "phi3": plain,
    "qwen2": qwen2,
    "qwen2_moe": qwen2_moe,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "smollm3": plain,
    "starcoder2": starcoder2,
}
"""Architectures by model_type; a test counts the parameters of each with transformers' own model."""
