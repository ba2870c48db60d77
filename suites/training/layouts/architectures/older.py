"""Dense architectures with LayerNorm and MLPs of two matrices: GPT-2's descendants, Falcon, MPT, BLOOM, OPT.

Facts: transformers 5.23.0, models/<model_type>/modeling_<model_type>.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.records import Unavailable
from suites.training.layouts.architectures.dense import Own, head_dim

BASE: Own = {"layer_norm": True, "gated": False}
ATTENTION_BIASES: Own = {"qkv_bias": True, "attention_output_bias": True}
BIASES: Own = {**ATTENTION_BIASES, "mlp_bias": True}


def gpt2(parsed: Any) -> Own:
    """Return biases and learned positions."""
    return {
        **BASE,
        **BIASES,
        "learned_positions": parsed.max_position_embeddings,
        "intermediate_size": parsed.n_inner or 4 * parsed.hidden_size,
        "dropout": float(parsed.resid_pdrop),
    }


def openai_gpt(parsed: Any) -> Own:
    """Return GPT-2's without a last norm, and with MLPs of four hidden sizes."""
    return {
        **BASE,
        **BIASES,
        "outer_norms": 0,
        "learned_positions": parsed.n_positions,
        "dropout": float(parsed.resid_pdrop),
    }


def gpt_bigcode(parsed: Any) -> Own:
    """Return GPT-2's with one key-value head where queries share it."""
    return {**gpt2(parsed), "num_key_value_heads": 1 if parsed.multi_query else parsed.num_attention_heads}


def gpt_neo(parsed: Any) -> Own:
    """Return biases but of queries, keys and values, and learned positions."""
    return {
        **BASE,
        "attention_output_bias": True,
        "mlp_bias": True,
        "learned_positions": parsed.max_position_embeddings,
        "dropout": float(parsed.resid_dropout),
    }


def gptj(parsed: Any) -> Own:
    """Return one norm per layer, for attention and MLP at once, and biases of MLPs and the output layer."""
    return {
        **BASE,
        "mlp_bias": True,
        "head_bias": True,
        "norms_per_layer": 1,
        "intermediate_size": parsed.n_inner or 4 * parsed.hidden_size,
        "dropout": float(parsed.resid_pdrop),
    }


def gpt_neox(parsed: Any) -> Own:
    """Return biases, of attention by a flag."""
    return {**BASE, "mlp_bias": True, "dropout": float(parsed.hidden_dropout)}


def phi(parsed: Any) -> Own:
    """Return one norm per layer, for attention and MLP at once, and biases, of the output layer too."""
    return {
        **BASE,
        **BIASES,
        "head_bias": True,
        "norms_per_layer": 1,
        "qk_norm_size": 4 * head_dim(parsed) if parsed.qk_layernorm else 0,
        "dropout": float(parsed.resid_pdrop),
    }


def persimmon(parsed: Any) -> Own:
    """Return biases, and norms of each head's queries and keys."""
    normed = 4 * head_dim(parsed) if parsed.qk_layernorm else 0
    return {**BASE, **BIASES, "qk_norm_size": normed, "dropout": float(parsed.hidden_dropout)}


def opt(parsed: Any) -> Own:
    """Return biases and learned positions, two more than the config says."""
    if parsed.word_embed_proj_dim != parsed.hidden_size or not parsed.do_layer_norm_before:
        raise Unavailable(
            f"opt: word_embed_proj_dim={parsed.word_embed_proj_dim}, do_layer_norm_before="
            f"{parsed.do_layer_norm_before}: layouts are answered for {parsed.hidden_size} and true"
        )
    return {
        **BASE,
        **(BIASES if parsed.enable_bias else {}),
        "layer_norm": bool(parsed.layer_norm_elementwise_affine),
        "norm_weights": bool(parsed.layer_norm_elementwise_affine),
        "outer_norms": 0 if parsed._remove_final_layer_norm else 1,
        "intermediate_size": parsed.ffn_dim,
        "learned_positions": parsed.max_position_embeddings + 2,
        "dropout": float(parsed.dropout),
    }


def biogpt(parsed: Any) -> Own:
    """Return biases and learned positions, two more than the config says."""
    positions = parsed.max_position_embeddings + 2
    return {**BASE, **BIASES, "learned_positions": positions, "dropout": float(parsed.hidden_dropout_prob)}


def xglm(parsed: Any) -> Own:
    """Return biases; positions are not learned."""
    return {**BASE, **BIASES, "intermediate_size": parsed.ffn_dim, "dropout": float(parsed.dropout)}


def bloom(parsed: Any) -> Own:
    """Return biases, and a norm of the embedding besides the last; positions are not learned."""
    width = 4 * parsed.hidden_size
    return {
        **BASE,
        **BIASES,
        "outer_norms": 2,
        "intermediate_size": width,
        "dropout": float(parsed.hidden_dropout),
    }


def falcon(parsed: Any) -> Own:
    """Return few key-value heads, and norms of parallel attention: two of the new architecture, else one."""
    heads = parsed.num_attention_heads
    new = bool(parsed.new_decoder_architecture)
    stated = getattr(parsed, "num_ln_in_parallel_attn", None) or (2 if new else 1)
    return {
        **BASE,
        **(BIASES if parsed.bias else {}),
        "num_key_value_heads": parsed.num_kv_heads if new else 1 if parsed.multi_query else heads,
        "norms_per_layer": stated if parsed.parallel_attn else 2,
        "intermediate_size": parsed.ffn_hidden_size,
        "dropout": float(parsed.hidden_dropout),
    }


def mpt(parsed: Any) -> Own:
    """Return norms without a shift and no biases, whatever the config says of them."""
    return {
        "gated": False,
        "intermediate_size": int(parsed.expansion_ratio * parsed.hidden_size),
        "dropout": float(parsed.resid_pdrop),
    }


def starcoder2(parsed: Any) -> Own:
    """Return biases where the config has them."""
    biases = dict.fromkeys(BIASES, bool(parsed.use_bias))
    return {**BASE, **biases}


OLDER: Mapping[str, Callable[[Any], Own]] = {
    "biogpt": biogpt,
    "bloom": bloom,
    "codegen": gptj,
    "falcon": falcon,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gptj": gptj,
    "mpt": mpt,
    "openai-gpt": openai_gpt,
    "opt": opt,
    "persimmon": persimmon,
    "phi": phi,
    "starcoder2": starcoder2,
    "xglm": xglm,
}
"""Architectures with LayerNorm by model_type."""
