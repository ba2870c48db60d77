"""The shape of sizes by transformers' names: what all architectures share, wherever the sizes come from."""

from __future__ import annotations

from typing import Any

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.architectures.dense import Own, head_dim


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
