"""Hugging Face configs from sizes, for frameworks whose files list a model's sizes in other words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class DecoderSizes(NamedTuple):
    """DecoderSizes of a decoder as Megatron-LM's arguments have them."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    gated: bool = False
    rms_norm: bool = False
    bias: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = True
    positions: int | None = None
    learned_positions: bool = True
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int | None = None
    shared_intermediate_size: int | None = None
    dense_layers: int = 0  # of a mixture of experts, from the first
    latent: Mapping[str, int | None] | None = None  # sizes of multi-head latent attention


def config_of(sizes: DecoderSizes) -> dict[str, Any]:
    """Return the Hugging Face config of the architecture that these sizes belong to.

    Which one: latent attention is deepseek_v3's, experts with RMSNorm mixtral's or qwen3_moe's, RMSNorm
    llama's, qwen2's or qwen3's, learned positions gpt2's, rotary ones with LayerNorm gpt_neox's, and gated
    MLPs with LayerNorm stablelm's. Raises ValueError where none has such layers.
    """
    width = sizes.intermediate_size or 4 * sizes.hidden_size
    common: dict[str, Any] = {
        "num_hidden_layers": sizes.num_hidden_layers,
        "hidden_size": sizes.hidden_size,
        "num_attention_heads": sizes.num_attention_heads,
        "num_key_value_heads": sizes.num_key_value_heads or sizes.num_attention_heads,
        "intermediate_size": width,
        "vocab_size": sizes.vocab_size,
        "tie_word_embeddings": sizes.tied,
    }
    if sizes.positions:
        common["max_position_embeddings"] = sizes.positions
    if sizes.head_dim:
        common["head_dim"] = sizes.head_dim
    if sizes.rms_norm and sizes.gated:
        return common | _modern(sizes, width)
    if sizes.gated and not sizes.num_experts:
        return {"model_type": "stablelm", **common}
    if sizes.num_experts or sizes.rms_norm:
        raise ValueError(
            "experts without gates, or RMSNorm without gated MLPs, are no architecture known here"
        )
    if sizes.learned_positions:
        return {
            "model_type": "gpt2",
            "n_layer": sizes.num_hidden_layers,
            "n_embd": sizes.hidden_size,
            "n_head": sizes.num_attention_heads,
            "n_inner": width,
            "n_positions": sizes.positions or 1024,
            "vocab_size": sizes.vocab_size,
            "tie_word_embeddings": sizes.tied,
        }
    return {"model_type": "gpt_neox", **common}


def _modern(sizes: DecoderSizes, width: int) -> dict[str, Any]:
    if sizes.latent is not None:
        return {"model_type": "deepseek_v3", **sizes.latent, **_deepseek_experts(sizes, width)}
    if sizes.num_experts:
        own = sizes.moe_intermediate_size or width
        if sizes.shared_intermediate_size or sizes.dense_layers:
            return _with_shared_experts(sizes, own)
        if sizes.qk_norm:
            return {
                "model_type": "qwen3_moe",
                "num_experts": sizes.num_experts,
                "num_experts_per_tok": sizes.experts_per_token,
                "moe_intermediate_size": own,
            }
        return {
            "model_type": "mixtral",
            "num_local_experts": sizes.num_experts,
            "num_experts_per_tok": sizes.experts_per_token,
            "intermediate_size": own,
        }
    if sizes.qk_norm:
        return {"model_type": "qwen3"}
    return {"model_type": "qwen2"} if sizes.qkv_bias else {"model_type": "llama"}


def _with_shared_experts(sizes: DecoderSizes, own: int) -> dict[str, Any]:
    """Return glm4_moe's, which has dense first layers and shared experts next to grouped-query attention.

    Raises ValueError where the shared experts are no whole number of others: no architecture has such.
    """
    shared = sizes.shared_intermediate_size or 0
    if shared % own:
        raise ValueError(
            f"a shared expert of width {shared} next to experts of {own} is no architecture known here"
        )
    return {
        "model_type": "glm4_moe",
        "use_qk_norm": sizes.qk_norm,
        "attention_bias": sizes.qkv_bias,
        "n_routed_experts": sizes.num_experts,
        "num_experts_per_tok": sizes.experts_per_token,
        "moe_intermediate_size": own,
        "n_shared_experts": shared // own,
        "first_k_dense_replace": sizes.dense_layers,
    }


def _deepseek_experts(sizes: DecoderSizes, width: int) -> dict[str, Any]:
    if not sizes.num_experts:
        return {"first_k_dense_replace": sizes.num_hidden_layers}
    own = sizes.moe_intermediate_size or width
    return {
        "n_routed_experts": sizes.num_experts,
        "num_experts_per_tok": sizes.experts_per_token,
        "moe_intermediate_size": own,
        "n_shared_experts": (sizes.shared_intermediate_size or 0) // own,
        "first_k_dense_replace": sizes.dense_layers,
    }
