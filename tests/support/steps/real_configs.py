"""The published config.json files in tests/data/configs, and the same models made small."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from harness.config.hf_config import LAYERS, read_workload_file

FOLDER = Path(__file__).parents[2] / "data" / "configs"
NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))

SMALL = {
    "attention_chunk_size": 16,
    "ffn_dim": 160,
    "first_k_dense_replace": 1,
    "head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 160,
    "intermediate_size_mlp": 160,
    "kv_lora_rank": 16,
    "max_position_embeddings": 128,
    "moe_intermediate_size": 48,
    "n_ctx": 128,
    "n_embd": 64,
    "n_embed": 64,
    "n_group": 2,
    "n_head": 4,
    "n_positions": 128,
    "n_routed_experts": 4,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "original_max_position_embeddings": 64,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "sliding_window": 16,
    "sliding_window_pattern": 2,
    "topk_group": 1,
    "v_head_dim": 16,
    "vocab_size": 256,
    "word_embed_proj_dim": 32,
}
"""Sizes of the small models, where the published ones are larger."""

DEFAULTS: dict[str, dict[str, int]] = {
    "gemma-3-4b": {"vocab_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
}
"""Sizes of the small models that the published file leaves to its class."""


def file_of(name: str) -> Path:
    """Return the published file."""
    return FOLDER / f"{name}.json"


@cache
def published(name: str) -> dict[str, Any]:
    """Return the published config of the language model, to be trained without quantized weights."""
    config = read_workload_file(file_of(name))
    return {key: value for key, value in config.items() if key != "quantization_config"}


def cut(config: dict[str, Any], num_hidden_layers: int) -> dict[str, Any]:
    """Return the config with its first layers only; lists with an entry per layer are shortened."""
    depth = next(name for name in LAYERS if name in config)
    return {
        key: value[:num_hidden_layers] if isinstance(value, list) and len(value) == config[depth] else value
        for key, value in config.items()
    } | {depth: num_hidden_layers}


def shrunken(name: str, num_hidden_layers: int = 4) -> dict[str, Any]:
    """Return the config with few layers, each with small sizes; all else is as published."""
    config = published(name)
    grouped = config.get("num_key_value_heads", 0) != config.get("num_attention_heads")
    return _small(cut(config, num_hidden_layers), 2 if grouped else 4) | DEFAULTS.get(name, {})


def _small(config: dict[str, Any], num_key_value_heads: int) -> dict[str, Any]:
    sizes = SMALL | {"num_key_value_heads": num_key_value_heads}
    made: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            made[key] = _small(value, num_key_value_heads)
        elif key.endswith("token_id"):
            made[key] = min(value, 2) if isinstance(value, int) else None
        elif key in sizes and value is not None:
            made[key] = min(value, sizes[key])
        else:
            made[key] = value
    return made
