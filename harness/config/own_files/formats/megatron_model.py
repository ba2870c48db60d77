"""The model of Megatron-LM's arguments as a Hugging Face config; see megatron.py for the sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    text = str(frequency).replace(" ", "").strip("()\"'")
    if text in ("1", "[1]"):
        return 0
    if found := re.fullmatch(r"\[0\]\*(\d+)\+\[1\]\*\d+", text):
        return int(found.group(1))
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


GATED = ("llama", "qwen2", "qwen3", "mixtral", "qwen3_moe", "glm4_moe", "deepseek_v3")
LEARNED = "gpt2"
"""Architectures whose configs `written_model` takes: those of `architectures.config_of`, with their names."""


def written_model(model: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a config's sizes as arguments, by argparse's names; empty without a model.

    Raises ValueError for another architecture, whose sizes would be missing in the file.
    """
    if model is None:
        return {}
    kind, known = model.get("model_type"), (*GATED, LEARNED, "gpt_neox")
    if kind not in known:
        raise ValueError(f"model_type is {kind}, whose sizes are not written; they are of {', '.join(known)}")
    if kind == LEARNED:
        return {
            "num_layers": model["n_layer"],
            "hidden_size": model["n_embd"],
            "ffn_hidden_size": model.get("n_inner"),
            "num_attention_heads": model["n_head"],
            "max_position_embeddings": model.get("n_positions"),
            "untie_embeddings_and_output_weights": not model.get("tie_word_embeddings", True),
            "padded_vocab_size": model["vocab_size"],
        }
    own: dict[str, Any] = {
        "num_layers": model["num_hidden_layers"],
        "hidden_size": model["hidden_size"],
        "ffn_hidden_size": model["intermediate_size"],
        "num_attention_heads": model["num_attention_heads"],
        "kv_channels": model.get("head_dim"),
        "max_position_embeddings": model.get("max_position_embeddings"),
        "position_embedding_type": "rope",
        "untie_embeddings_and_output_weights": not model.get("tie_word_embeddings", False),
        "padded_vocab_size": model["vocab_size"],
    }
    if kind == "gpt_neox":
        return own
    groups = model.get("num_key_value_heads") or model["num_attention_heads"]
    own |= {
        "group_query_attention": None if kind == "deepseek_v3" else True,
        "num_query_groups": None if kind == "deepseek_v3" else groups,
        "normalization": "RMSNorm",
        "swiglu": True,
        "disable_bias_linear": True,
        "add_qkv_bias": kind == "qwen2" or bool(model.get("attention_bias")),
        "qk_layernorm": kind in ("qwen3", "qwen3_moe") or bool(model.get("use_qk_norm")),
    }
    return own | _written_experts(model) | (_written_latent(model) if kind == "deepseek_v3" else {})


EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""How configs of different models call the number of experts."""


def _written_experts(model: Mapping[str, Any]) -> dict[str, Any]:
    count = next((model[name] for name in EXPERTS if model.get(name)), 0)
    if not count:
        return {}
    width = model.get("moe_intermediate_size") or model["intermediate_size"]
    dense, layers = model.get("first_k_dense_replace") or 0, model["num_hidden_layers"]
    return {
        "num_experts": count,
        "moe_router_topk": model["num_experts_per_tok"],
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": (model.get("n_shared_experts") or 0) * width or None,
        "moe_layer_freq": f"([0]*{dense}+[1]*{layers - dense})" if dense else None,
    }


def _written_latent(model: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "multi_latent_attention": True,
        "q_lora_rank": model.get("q_lora_rank"),
        "kv_lora_rank": model["kv_lora_rank"],
        "qk_head_dim": model["qk_nope_head_dim"],
        "qk_pos_emb_head_dim": model["qk_rope_head_dim"],
        "v_head_dim": model["v_head_dim"],
    }
