"""nanotron's YAML.

Sources: nanotron commit 2411b02 of April 2026 (config/config.py, config/parallelism_config.py,
config/models_config.py, parallel/context.py, helpers.py).
"""

from __future__ import annotations

from typing import Any

from harness.frameworks.architectures import USUAL, config_of, sizes_of_parts
from harness.frameworks.table import Fields, Parts
from harness.frameworks.words import steps_of
from harness.question import Question

SIZES = (*USUAL[:4], "num_key_value_heads", "vocab_size")
"""Sizes of a llama's config.json that the file has below `model.model_config.` by the same names."""


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    for field, key in (("dp", "parallelism.dp"), ("seq_len", "tokens.sequence_length")):
        if field not in parts:
            raise ValueError(f"half a file of nanotron: {key} is missing, which has no default")
    explicit = str(parts.get("_attention")) in ("eager", "sdpa_math")
    attention = "explicit" if explicit else "flash"
    return {"sharing": "nanotron", "attention": attention, "config": _model(parts)}


def _model(parts: Parts) -> dict[str, Any]:
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        if f"_{name}" not in parts:
            raise ValueError(f"model.model_config.{name} is missing; nanotron's default is one of its class")
    multiple, experts = parts["_divisible"] * parts["tp"], parts.get("_num_experts")
    vocabulary = -(-parts["_vocab_size"] // multiple) * multiple
    own = parts["_moe_intermediate_size"] if experts else None
    modern = {"gated": True, "rms_norm": True, "bias": False}
    return config_of(sizes_of_parts(parts, vocab_size=vocabulary, moe_intermediate_size=own, **modern))


def parts_of(question: Question) -> Fields:
    """Return nanotron's parts of a question; raises ValueError where it cannot express it."""
    config = question.config or {}
    return {
        "dp": question.dp_of(),
        "seq_len": question.seq_len or 2048,
        "schedule": "gpipe" if question.schedule == "gpipe" else "1f1b",
        "gradient_accumulation_steps": steps_of(question),
        **{f"_{name}": config.get(name) for name in SIZES},
        "_positions": config.get("max_position_embeddings"),
        "_tied": config.get("tie_word_embeddings"),
    }
