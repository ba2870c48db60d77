"""The model of Megatron-LM's arguments as a Hugging Face config and back; see megatron.py for the sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.frameworks.architectures import (
    LATENT,
    config_of,
    has_architecture,
    sizes_alone,
    sizes_of,
    sizes_of_parts,
)
from harness.frameworks.models import published_model
from harness.frameworks.shell_variables import evaluated
from harness.frameworks.table import Fields, Parts
from harness.question import Direction

VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    "TikTokenizer": 131072,
    "ByteLevelTokenizer": 512,
}
"""Entries of tokenizers that are named without a size: GPT-2's (transformers), Llama 2's (litgpt) and
Megatron-LM's own (core/tokenizers/text/libraries/tiktoken_tokenizer.py, bytelevel_tokenizer.py)."""

FILES = {"nemotron_2_256k": 256000, "llama-2": 32000, "llama2": 32000}
"""Entries of tokenizers by a part of their file's path."""

ASSUMED_VOCABULARY = 131072
"""Of a tokenizer that nobody knows: as many as today's have, about."""

LITTLE = 0.1
"""Of the parameters of all layers, about 12 h² each: an unknown vocabulary below it turns no verdict."""

STATE_B = 18
"""Bytes per parameter of bf16 weights, fp32 gradients and Adam's states, where nothing is sharded."""


def model_config(parts: Parts) -> dict[str, Any] | None:
    """Return the Hugging Face config of the model's sizes; None where the file has none."""
    pattern = str(parts.get("_pattern") or "")
    blocks = _blocks(pattern)
    if blocks:  # training/arguments.py: then num_layers and mtp_num_layers are not looked at
        parts["_num_hidden_layers"] = len(blocks)
        parts["_next_layers"] = pattern.count("/") or parts.get("_next_layers")
    names = {"num_layers": "_num_hidden_layers", "hidden_size": "_hidden_size"}
    names["num_attention_heads"] = "_num_attention_heads"
    missing = [key for key, part in names.items() if part not in parts]
    if len(missing) == len(names):
        return None
    if missing:
        raise ValueError(f"half of a model: {', '.join(missing)} missing next to the other sizes")
    learned = str(parts.get("_position_type", "learned_absolute")).startswith("learned")
    hidden, width = parts["_hidden_size"], parts.get("_intermediate_size")
    if width is None and parts.get("_swiglu"):  # training/arguments.py, validate_args
        width = int(hidden * 8 / 3 / 64) * 64
    dense, irregular = _moe_layers(parts)
    sizes = sizes_of_parts(
        parts,
        gated=any(parts.get(name) for name in ("_gated", "_swiglu", "_geglu")),
        intermediate_size=width or 4 * hidden,
        head_dim=None if parts.get("_latent") else parts.get("_head_dim"),
        num_key_value_heads=_groups(parts),
        vocab_size=_vocabulary(parts),
        rms_norm=str(parts.get("_norm", "LayerNorm")).lower() == "rmsnorm",
        learned_positions=learned and not parts.get("_rope"),
        dense_layers=dense,
        moe_layers=irregular,
    )
    if blocks:
        return sizes_alone(sizes) | _hybrid_sizes(blocks, parts)
    return config_of(sizes) if has_architecture(sizes) else sizes_alone(sizes)


def _groups(parts: Parts) -> int | None:
    """Return the key-value heads; without num_query_groups the switch makes all heads share one.

    (core/transformer/transformer_config.py, num_query_groups: its default as an argument)
    """
    if not parts.get("_gqa", True):
        return None
    return parts.get("_num_key_value_heads") or (1 if parts.get("_gqa") else None)


BLOCKS = "M*-E"
"""Layers of a pattern: Mamba-2, attention, an MLP, experts (core/ssm/mamba_hybrid_layer_allocation.py)."""


def _blocks(pattern: str) -> str:
    """Return a pattern's layers, without the ends of pipeline stages; raises ValueError for other kinds.

    Each "/" begins a layer of multi-token prediction.
    """
    blocks = pattern.strip("\"'").partition("/")[0].replace("|", "")
    if other := sorted(set(blocks) - set(BLOCKS)):
        raise ValueError(f"hybrid_layer_pattern has {other[0]}; layers are modelled of the kinds {BLOCKS}")
    return blocks


def layers_of_pattern(pattern: str) -> tuple[int, ...]:
    """Return the layers of every pipeline stage of a pattern, whose ends "|" are."""
    return tuple(map(len, pattern.strip("\"'").partition("/")[0].split("|")))


def _hybrid_sizes(blocks: str, parts: Parts) -> dict[str, Any]:
    """Return what a hybrid has besides: kinds of layers and Mamba-2's sizes, by Nemotron-H's names.

    Without mamba_num_heads Mamba-2 is twice as wide as the hidden size (core/ssm/mamba_mixer.py, expand).
    """
    head_dim = int(parts["_mamba_head_dim"])
    heads = parts.get("_mamba_num_heads") or 2 * int(parts["_hidden_size"]) // head_dim
    return {
        "hybrid_layer_pattern": blocks,
        "mamba_num_heads": int(heads),
        "mamba_head_dim": head_dim,
        "n_groups": int(parts["_n_groups"]),
        "ssm_state_size": int(parts["_ssm_state_size"]),
    }


def _vocabulary(parts: Parts) -> int:
    """Return the padded entries of the vocabulary (Megatron pads to a multiple of divisible_by × tp).

    What the file does not decide is assumed, and named with its bytes.
    """
    if parts.get("_padded_vocab"):
        return int(parts["_padded_vocab"])
    size, tokenizer = parts.get("_vocab"), str(parts.get("_tokenizer") or "")
    file = str(parts.get("_tokenizer_model") or "")
    known = _entries_of(file)
    if size is None:
        size = known if tokenizer not in ("GPT2BPETokenizer", "TikTokenizer") else None
    if size is None and not (tokenizer == "Llama2Tokenizer" and file):
        size = VOCABULARIES.get(tokenizer)
    if size is None and parts.get("_merge_file") and not tokenizer:
        size = VOCABULARIES["GPT2BPETokenizer"]
    if size is None:
        size = VOCABULARIES.get(tokenizer, ASSUMED_VOCABULARY)
        tables = 1 if parts.get("_tied", True) else 2
        hidden, layers = parts["_hidden_size"], parts["_num_hidden_layers"]
        states_B = STATE_B * tables * size * hidden
        why = (
            f"the entries of {file or 'the tokenizer'} are in no key: {size:,} are assumed, with "
            f"{states_B / 1e9:.2g} GB of states over all tensor-parallel ranks; give vocab_size="
        )
        much = tables * ASSUMED_VOCABULARY * hidden > LITTLE * 12 * hidden**2 * layers
        direction: Direction = "raises" if tokenizer == "Llama2Tokenizer" else "either"
        parts.leave_out("vocab_size", None, why, *((direction, direction) if much else ("none", "none")))
    multiple = int(parts["_divisible"]) * int(parts["tp"])
    return -(-int(size) // multiple) * multiple


def _entries_of(file: str) -> int | None:
    """Return the entries of a tokenizer by its model's name, which may be a part of its path."""
    found = next((size for part, size in FILES.items() if part in file.lower()), None)
    if found or not file:
        return found
    shapes = (published_model(name) for name in (file, *reversed(file.split("/"))) if name)
    shape = next((one for one in shapes if one), None)
    return int(shape.config["vocab_size"]) if shape else None


def _moe_layers(parts: Parts) -> tuple[int, tuple[bool, ...]]:
    """Return how many layers from the first have no experts; and by layer, where that does not say all.

    Raises ValueError for a pattern of another length than the layers, as Megatron-LM does.
    """
    given, count = parts.get("_moe_freq", 1), parts["_num_hidden_layers"]
    if not parts.get("_num_experts"):
        return 0, ()
    try:
        pattern = given if isinstance(given, list) else evaluated(str(given))
    except ValueError:
        words = "it must be a number or a list of 0 and 1"
        raise ValueError(f"moe_layer_freq is {str(given)[:60]!r}; {words}") from None
    if isinstance(pattern, int):
        if not pattern:
            raise ValueError("moe_layer_freq is 0; it must be a number or a list of 0 and 1")
        pattern = [int(layer % pattern == 0) for layer in range(count)]
    if len(pattern) != count:
        raise ValueError(f"moe_layer_freq {given} has {len(pattern)} layers, num_layers is {count}")
    dense = pattern.index(1) if 1 in pattern else count
    return (dense, ()) if all(pattern[dense:]) else (0, tuple(map(bool, pattern)))


def model_parts(config: Mapping[str, Any] | None) -> Fields:
    """Return a config's sizes as Megatron-LM's parts; empty without a model.

    Raises ValueError for an architecture whose sizes would be missing in the file.
    """
    if config is None:
        return {}
    sizes = sizes_of(config)
    parts: Fields = {f"_{name}": size or None for name, size in sizes._asdict().items()}
    parts |= {"_dropout": sizes.dropout, "_attention_dropout": sizes.dropout, "_swiglu": sizes.gated or None}
    modern, dense = sizes.rms_norm, sizes.dense_layers
    if not sizes.latent:
        parts |= dict.fromkeys(f"_{name}" for name in LATENT)
    if sizes.latent or (not modern and sizes.num_key_value_heads == sizes.num_attention_heads):
        parts["_num_key_value_heads"] = None
    if not sizes.num_experts:
        parts["_experts_per_token"] = None
    frequency = f"([0]*{dense}+[1]*{sizes.num_hidden_layers - dense})" if dense else None
    if sizes.moe_layers:
        frequency = str([int(one) for one in sizes.moe_layers]).replace(" ", "")
    return parts | {
        "_padded_vocab": sizes.vocab_size,
        "_gqa": True if parts["_num_key_value_heads"] else None,
        "_norm": "RMSNorm" if modern else None,
        "_bias": None if sizes.bias else False,
        "_tied": None if sizes.tied else False,
        "_position_type": None if sizes.learned_positions else "rope",
        "_moe_freq": frequency,
    }
