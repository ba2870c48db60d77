"""Dense architectures with RMSNorm and rotary embedding, most of them Llama's descendants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Own = Mapping[str, Any]
"""Fields of a shape that an architecture has besides the sizes which all share."""


def head_dim(parsed: Any) -> int:
    """Return the size of a head, of which some configs state nothing."""
    return int(getattr(parsed, "head_dim", None) or parsed.hidden_size // parsed.num_attention_heads)


def plain(_: Any) -> Own:
    """Return nothing: RMSNorm, SwiGLU, rotary embedding."""
    return {}


def qwen2(_: Any) -> Own:
    """Return biases of queries, keys and values."""
    return {"qkv_bias": True}


def qwen3(parsed: Any) -> Own:
    """Return norms of each head's queries and keys."""
    return {"qk_norm_size": 2 * head_dim(parsed)}


def olmo(_: Any) -> Own:
    """Return LayerNorms without parameters."""
    return {"norm_weights": False}


def olmo2(parsed: Any) -> Own:
    """Return norms of all queries and all keys."""
    heads = parsed.num_attention_heads + parsed.num_key_value_heads
    return {"qk_norm_size": head_dim(parsed) * heads}


def gemma2(_: Any) -> Own:
    """Return norms before and after each part."""
    return {"norms_per_layer": 4}


def gemma3(parsed: Any) -> Own:
    """Return norms before and after each part, and of each head's queries and keys."""
    return {"norms_per_layer": 4, **qwen3(parsed)}


def glm(parsed: Any) -> Own:
    """Return `attention_bias` of queries, keys and values alone."""
    return {"qkv_bias": bool(parsed.attention_bias), "attention_output_bias": False}


def glm4(parsed: Any) -> Own:
    """Return norms before and after each part, and biases of queries, keys and values."""
    return {"norms_per_layer": 4, **glm(parsed)}


def seed_oss(parsed: Any) -> Own:
    """Return attention's output with a bias of its own flag."""
    return {"attention_output_bias": bool(parsed.attention_out_bias)}


def ungated(_: Any) -> Own:
    """Return MLPs of two matrices."""
    return {"gated": False}


def nemotron(_: Any) -> Own:
    """Return LayerNorm and MLPs of two matrices."""
    return {"gated": False, "layer_norm": True}


def ernie4_5(parsed: Any) -> Own:
    """Return biases of every linear layer but the output layer, where the config has them."""
    return dict.fromkeys(("qkv_bias", "attention_output_bias", "mlp_bias"), bool(parsed.use_bias))


def nanochat(_: Any) -> Own:
    """Return norms without parameters, and MLPs of two matrices."""
    return {"gated": False, "norm_weights": False}


def apertus(parsed: Any) -> Own:
    """Return MLPs of two matrices and norms of each head, besides two parameters of the activation."""
    activation = 2 if parsed.hidden_act == "xielu" else 0
    return {"gated": False, "qk_norm_size": 2 * head_dim(parsed) + activation}


def hyperclovax(parsed: Any) -> Own:
    """Return norms after each part, too, where the config has them."""
    return {"norms_per_layer": 4 if parsed.use_post_norm else 2}


def granite_swa(_: Any) -> Own:
    """Return a sink per head."""
    return {"attention_sinks": True}


def latent(parsed: Any) -> Own:
    """Return the sizes of multi-head latent attention (arXiv 2405.04434, section 2.1)."""
    return {
        "num_key_value_heads": parsed.num_attention_heads,
        "head_dim": parsed.qk_nope_head_dim + parsed.qk_rope_head_dim,
        "q_lora_rank": parsed.q_lora_rank or 0,
        "kv_lora_rank": parsed.kv_lora_rank,
        "qk_rope_head_dim": parsed.qk_rope_head_dim,
        "v_head_dim": parsed.v_head_dim,
    }


def cohere(parsed: Any) -> Own:
    """Return one norm per layer, for attention and MLP at once, and one per head where the config has it."""
    heads = parsed.num_attention_heads + parsed.num_key_value_heads
    normed = bool(getattr(parsed, "use_qk_norm", False))
    return {"norms_per_layer": 1, "qk_norm_size": heads * head_dim(parsed) if normed else 0}


def stablelm(parsed: Any) -> Own:
    """Return LayerNorm, one per layer where attention and MLP are parallel."""
    heads = parsed.num_attention_heads + parsed.num_key_value_heads
    return {
        "layer_norm": True,
        "norms_per_layer": 1 if parsed.use_parallel_residual else 2,
        "qkv_bias": bool(parsed.use_qkv_bias),
        "qk_norm_size": heads * head_dim(parsed) if parsed.qk_layernorm else 0,
    }


DENSE: Mapping[str, Callable[[Any], Own]] = {
    "apertus": apertus,
    "arcee": ungated,
    "cohere": cohere,
    "cohere2": cohere,
    "cwm": plain,
    "ernie4_5": ernie4_5,
    "exaone4": qwen3,
    "gemma": plain,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "glm": glm,
    "glm4": glm4,
    "granite": plain,
    "granite_swa": granite_swa,
    "helium": glm,
    "hunyuan_v1_dense": qwen3,
    "hyperclovax": hyperclovax,
    "internlm3": plain,
    "iquestcoder": plain,
    "jais2": nemotron,
    "llama": plain,
    "minicpm3": latent,
    "ministral": plain,
    "ministral3": plain,
    "mistral": plain,
    "nanochat": nanochat,
    "nemotron": nemotron,
    "olmo": olmo,
    "olmo2": olmo2,
    "olmo3": olmo2,
    "phi3": plain,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "seed_oss": seed_oss,
    "smollm3": plain,
    "stablelm": stablelm,
    "vaultgemma": plain,
    "youtu": latent,
}
"""Dense architectures by model_type."""
