"""nanotron's YAML, and scripts that build it, read as text.

Sources: nanotron commit 2411b02 of April 2026 (config/config.py, config/parallelism_config.py,
config/models_config.py, parallel/context.py, helpers.py).
"""

from __future__ import annotations

from typing import Any

from harness.frameworks.architectures import USUAL, config_of, has_architecture, sizes_alone, sizes_of_parts
from harness.frameworks.table import Fields, Flat, Parts
from harness.frameworks.words import steps_of
from harness.question import Question

WIDTH = "moe_intermediate_size"

SIZES = (*USUAL[:4], "num_key_value_heads", "vocab_size")
"""Sizes of a llama's config.json that the file has below `model.model_config.` by the same names."""


OLDER = "model.model_config.is_llamoe_config"
"""Of the example's experts: two matrices each, without a gate (examples/moe/moe.py, SparseMLP and MLP), split
over tp and ep, which is a dimension of the ranks next to dp (parallel/context.py, _init_parallel_groups)."""


def prepared(flat: Flat) -> Flat:
    """Return the values, of a script those of its `Config`, with today's names of experts.

    Older ones are as wide as the MLP.
    """
    if "_imports" in flat:
        own = {key.removeprefix("Config."): value for key, value in flat.items() if key.startswith("Config.")}
        flat = {key: value for key, value in own.items() if not key.endswith("_class")}
    if flat.get("parallelism.tp", 1) == 1:  # tensor_parallel/functional.py: nothing to overlap with
        flat = {
            key: value for key, value in flat.items() if key != "parallelism.tp_linear_async_communication"
        }
    if not flat.get("model.model_config.moe_num_experts"):
        return flat
    older = {"num_experts": "moe_num_experts", "top_k": "num_experts_per_tok", WIDTH: "intermediate_size"}
    section = {
        f"model.model_config.moe_config.{new}": flat.get(f"model.model_config.{old}")
        for new, old in older.items()
    }
    kept = {key: value for key, value in flat.items() if not key.endswith("moe_num_experts")}
    return kept | section | {OLDER: True}


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    if any(key.endswith((".is_mamba_config", ".ssm_cfg")) or ".ssm_cfg." in key for key in parts.flat):
        raise ValueError("its layers are Mamba's, which are not modelled")
    for field, key in (("dp", "parallelism.dp"), ("seq_len", "tokens.sequence_length")):
        if field not in parts:
            raise ValueError(f"half a file of nanotron: {key} is missing, which has no default")
    explicit = str(parts.get("_attention")) in ("eager", "sdpa_math")
    attention = "explicit" if explicit else "flash"
    fields: Fields = {"sharing": "nanotron", "attention": attention, "config": _model(parts)}
    if parts.flat.get(OLDER):  # ranks that share experts are a dimension of their own, and tp divides each
        fields |= {"dp": parts["dp"] * parts["ep"], "etp": parts["tp"]}
    return fields


def _model(parts: Parts) -> dict[str, Any]:
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        if f"_{name}" not in parts:
            raise ValueError(f"model.model_config.{name} is missing; nanotron's default is one of its class")
    multiple, experts = parts["_divisible"] * parts["tp"], parts.get("_num_experts")
    vocabulary = -(-parts["_vocab_size"] // multiple) * multiple
    own = parts["_moe_intermediate_size"] if experts else None
    modern = {"gated": not parts.flat.get(OLDER), "rms_norm": True, "bias": False}
    sizes = sizes_of_parts(
        parts, vocab_size=vocabulary, moe_intermediate_size=own, learned_positions=False, **modern
    )
    return config_of(sizes) if has_architecture(sizes) else sizes_alone(sizes)


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
