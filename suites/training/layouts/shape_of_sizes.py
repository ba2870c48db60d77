"""The shape of sizes by transformers' names: what all architectures share, wherever the sizes come from."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.architectures.dense import Own, head_dim, latent
from suites.training.layouts.architectures.experts import moe_layers

SIZES_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads")
"""Sizes without which a model has no shape."""


def shape_of_sizes(parsed: Any, own: Own) -> TransformerShape:
    """Return the shape of sizes by transformers' names, with what an architecture has besides."""
    heads = parsed.num_attention_heads
    attention_bias = bool(getattr(parsed, "attention_bias", False))
    given: dict[str, Any] = {
        "num_hidden_layers": parsed.num_hidden_layers,
        "hidden_size": parsed.hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(parsed, "num_key_value_heads", None) or heads,
        "head_dim": head_dim(parsed),
        "intermediate_size": getattr(parsed, "intermediate_size", None) or 4 * parsed.hidden_size,
        "vocab_size": parsed.vocab_size,
        "tie_word_embeddings": bool(parsed.tie_word_embeddings),
        "qkv_bias": attention_bias,
        "attention_output_bias": attention_bias,
        "mlp_bias": bool(getattr(parsed, "mlp_bias", False)),
    }
    return TransformerShape(**{**given, **windows(parsed), **own})


def windows(parsed: Any) -> Own:
    """Return which layers see a window alone."""
    window = getattr(parsed, "sliding_window", None) or getattr(parsed, "attention_chunk_size", None)
    kinds = getattr(parsed, "layer_types", None) or []
    seen = tuple(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    if not window or not (any(seen) or (not kinds and parsed.model_type == "mistral")):
        return {}
    return {"sliding_window": int(window), "windowed_layers": seen}


def shape_without_type(config: Mapping[str, Any]) -> TransformerShape:
    """Return the shape of sizes whose architecture nobody states; raises KeyError without `SIZES_NEEDED`.

    What the sizes show is taken, and no biases or inner norms. `gated_mlp` is a key of its own: without a
    gate, norms have biases.
    """
    parsed = SimpleNamespace(
        **{
            "model_type": "",
            "qk_nope_head_dim": 128,
            "v_head_dim": 0,
            "tie_word_embeddings": False,
            **config,
            **{name: int(config[name]) for name in SIZES_NEEDED},
            "qk_rope_head_dim": int(config.get("qk_rope_head_dim") or 64),
            "q_lora_rank": int(config.get("q_lora_rank") or 0),
            "vocab_size": int(config.get("vocab_size") or 32000),
        }
    )
    gated = config.get("gated_mlp", True)
    own = {"gated": gated, "layer_norm": not gated, **_experts(config)}
    return shape_of_sizes(parsed, {**own, **latent(parsed)} if config.get("kv_lora_rank") else own)


def _experts(config: Mapping[str, Any]) -> Own:
    """Return what a mixture of experts has besides."""
    if not config.get("num_experts"):
        return {}
    size = {name: int(config.get(name) or 0) for name in EXPERT_SIZES}
    width = size["moe_intermediate_size"]
    dense, step = size["first_k_dense_replace"], size["decoder_sparse_step"] or 1
    return {
        "num_experts": size["num_experts"],
        "experts_per_token": size["num_experts_per_tok"] or 1,
        "moe_intermediate_size": width,
        "shared_intermediate_size": size["n_shared_experts"] * width
        or size["shared_expert_intermediate_size"],
        "moe_layers": moe_layers(int(config["num_hidden_layers"]), dense, step),
        "num_nextn_predict_layers": size["num_nextn_predict_layers"],
    }


EXPERT_SIZES = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "num_nextn_predict_layers",
)
