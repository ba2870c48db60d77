"""The model of Megatron-LM's arguments as a Hugging Face config; see megatron.py for the sources."""

from __future__ import annotations

from typing import Any

from harness.config.own_files.architectures import DecoderSizes, config_of
from harness.config.own_files.models import published_model
from harness.config.own_files.setup import NotUnderstood
from harness.config.own_files.table import Fields

VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Entries of tokenizers that are named without a size: GPT-2's (transformers) and Llama 2's (litgpt)."""


def model_config(fields: Fields, unclear: list[NotUnderstood]) -> dict[str, Any] | None:
    """Return the Hugging Face config of the model's sizes; None where the file has none."""
    names = {"num_layers": "_layers", "hidden_size": "_hidden", "num_attention_heads": "_heads"}
    missing = [key for key, field in names.items() if field not in fields]
    if len(missing) == len(names):
        return None
    if missing:
        raise ValueError(f"half of a model: {', '.join(missing)} missing next to the other sizes")
    vocabulary = _vocabulary(fields)
    if vocabulary is None:
        why = "is missing, and the tokenizer's size is not known; give model="
        unclear.append(NotUnderstood("vocab_size", fields.get("_tokenizer"), why))
        return None
    sizes = DecoderSizes(
        num_hidden_layers=fields["_layers"],
        hidden_size=fields["_hidden"],
        num_attention_heads=fields["_heads"],
        vocab_size=vocabulary,
        num_key_value_heads=fields.get("_groups"),
        head_dim=fields.get("_head_dim"),
        intermediate_size=fields.get("_ffn"),
        gated=bool(fields.get("_swiglu")),
        rms_norm=str(fields.get("_norm", "LayerNorm")).lower() == "rmsnorm",
        bias=not fields.get("_no_bias"),
        qkv_bias=bool(fields.get("_qkv_bias")),
        qk_norm=bool(fields.get("_qk_norm")),
        tied=not fields.get("_untied"),
        positions=fields.get("_positions"),
        learned_positions=str(fields.get("_position_type", "learned_absolute")).startswith("learned"),
        num_experts=fields.get("_experts") or 0,
        experts_per_token=fields.get("_top_k") or 2,
        moe_intermediate_size=fields.get("_moe_ffn"),
        shared_intermediate_size=fields.get("_shared"),
        dense_layers=_dense_layers(fields),
        latent=_latent(fields),
    )
    if fields.get("_experts") and _dense_layers(fields) < 0:
        unclear.append(
            NotUnderstood("moe_layer_freq", fields["_moe_freq"], "layers with and without experts alternate")
        )
        sizes = sizes._replace(dense_layers=0)
    try:
        return config_of(sizes)
    except ValueError as error:
        unclear.append(NotUnderstood("normalization", fields.get("_norm"), str(error)))
        return None


def _vocabulary(fields: Fields) -> int | None:
    """Return the padded entries of the vocabulary (Megatron pads to a multiple of divisible_by × tp)."""
    if fields.get("_padded_vocab"):
        return int(fields["_padded_vocab"])
    size = fields.get("_vocab") or VOCABULARIES.get(str(fields.get("_tokenizer")))
    if size is None and fields.get("_tokenizer_model"):
        known = published_model(str(fields["_tokenizer_model"]))
        size = int(known.config["vocab_size"]) if known else None
    if size is None and fields.get("_merge_file") and not fields.get("_tokenizer"):
        size = VOCABULARIES["GPT2BPETokenizer"]
    if size is None:
        return None
    multiple = int(fields["_divisible"]) * int(fields["tp"])
    return -(-int(size) // multiple) * multiple


def _dense_layers(fields: Fields) -> int:
    """Return how many layers from the first have no experts; -1 where they alternate otherwise."""
    frequency = fields.get("_moe_freq", 1)
    text = str(frequency).replace(" ", "")
    if text in ("1", "[1]"):
        return 0
    if text.startswith("([0]*") and "+[1]*" in text:
        return int("".join(filter(str.isdigit, text.partition("+")[0].removeprefix("([0]*"))) or 0)
    if isinstance(frequency, list):
        dense = frequency.index(1) if 1 in frequency else len(frequency)
        return dense if all(frequency[dense:]) else -1
    return -1


def _latent(fields: Fields) -> dict[str, int | None] | None:
    if not fields.get("_mla"):
        return None
    return {
        "q_lora_rank": fields.get("_q_lora"),
        "kv_lora_rank": fields["_kv_lora"],
        "qk_nope_head_dim": fields["_qk_dim"],
        "qk_rope_head_dim": fields["_rope_dim"],
        "v_head_dim": fields["_v_dim"],
    }
