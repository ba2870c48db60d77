"""The model of Megatron-LM's arguments as a Hugging Face config and back; see megatron.py for the sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.frameworks.architectures import LATENT, config_of, sizes_of, sizes_of_parts
from harness.frameworks.models import published_model
from harness.frameworks.table import Fields, Parts

VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Entries of tokenizers that are named without a size: GPT-2's (transformers) and Llama 2's (litgpt)."""


def model_config(parts: Parts) -> dict[str, Any] | None:
    """Return the Hugging Face config of the model's sizes; None where the file has none."""
    names = {"num_layers": "_num_hidden_layers", "hidden_size": "_hidden_size"}
    names["num_attention_heads"] = "_num_attention_heads"
    missing = [key for key, part in names.items() if part not in parts]
    if len(missing) == len(names):
        return None
    if missing:
        raise ValueError(f"half of a model: {', '.join(missing)} missing next to the other sizes")
    vocabulary = _vocabulary(parts)
    if vocabulary is None:
        why = "is missing, and the tokenizer's size is not known; give model="
        parts.leave_out("vocab_size", parts.get("_tokenizer"), why)
        return None
    sizes = sizes_of_parts(
        parts,
        vocab_size=vocabulary,
        rms_norm=str(parts.get("_norm", "LayerNorm")).lower() == "rmsnorm",
        learned_positions=str(parts.get("_position_type", "learned_absolute")).startswith("learned"),
        dense_layers=_dense_layers(parts) if parts.get("_num_experts") else 0,
    )
    try:
        return config_of(sizes)
    except ValueError as error:
        parts.leave_out("normalization", parts.get("_norm"), str(error))
        return None


def _vocabulary(parts: Parts) -> int | None:
    """Return the padded entries of the vocabulary (Megatron pads to a multiple of divisible_by × tp)."""
    if parts.get("_padded_vocab"):
        return int(parts["_padded_vocab"])
    size = parts.get("_vocab") or VOCABULARIES.get(str(parts.get("_tokenizer")))
    if size is None and parts.get("_tokenizer_model"):
        known = published_model(str(parts["_tokenizer_model"]))
        size = int(known.config["vocab_size"]) if known else None
    if size is None and parts.get("_merge_file") and not parts.get("_tokenizer"):
        size = VOCABULARIES["GPT2BPETokenizer"]
    if size is None:
        return None
    multiple = int(parts["_divisible"]) * int(parts["tp"])
    return -(-int(size) // multiple) * multiple


REPEATED = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d+))?")
"""A part of a pattern such as ([0]*3+[1]*58), which Megatron-LM evaluates."""


def _dense_layers(parts: Parts) -> int:
    """Return how many layers from the first have no experts.

    Where layers with and without experts alternate, which no architecture here does, all are taken to have
    some.
    """
    given = parts.get("_moe_freq", 1)
    text = str(given).replace(" ", "").strip("()\"'")
    if text == "1":
        return 0
    layers: list[int] = []
    for part in text.split("+"):
        found = REPEATED.fullmatch(part)
        kinds = found.group(1).split(",") * int(found.group(2) or 1) if found else ["1", "0"]
        layers += map(int, kinds)
    dense = layers.index(1) if 1 in layers else len(layers)
    if all(layers[dense:]):
        return dense
    why = "layers with and without experts alternate; all are taken to have experts"
    parts.leave_out("moe_layer_freq", given, why, "lowers", "lowers")
    return 0


def model_parts(config: Mapping[str, Any] | None) -> Fields:
    """Return a config's sizes as Megatron-LM's parts; empty without a model.

    Raises ValueError for an architecture whose sizes would be missing in the file.
    """
    if config is None:
        return {}
    sizes = sizes_of(config)
    parts: Fields = {f"_{name}": size or None for name, size in sizes._asdict().items()}
    modern, dense = sizes.rms_norm, sizes.dense_layers
    if not sizes.latent:
        parts |= dict.fromkeys(f"_{name}" for name in LATENT)
    if not modern or sizes.latent:
        parts["_num_key_value_heads"] = None
    if not sizes.num_experts:
        parts["_experts_per_token"] = None
    frequency = f"([0]*{dense}+[1]*{sizes.num_hidden_layers - dense})"
    return parts | {
        "_padded_vocab": sizes.vocab_size,
        "_gqa": True if parts["_num_key_value_heads"] else None,
        "_norm": "RMSNorm" if modern else None,
        "_bias": False if modern else None,
        "_tied": None if sizes.tied else False,
        "_position_type": None if sizes.learned_positions else "rope",
        "_moe_freq": frequency if dense else None,
    }
