"""Mixtures of experts: of every layer, of layers by a step, and after dense first layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from suites.training.layouts.architectures.dense import (
    Own,
    ernie4_5,
    glm,
    granite_swa,
    head_dim,
    latent,
    olmo2,
    qwen3,
)


def moe_layers(layers: int, first: int = 0, step: int = 1, last: int | None = None) -> tuple[bool, ...]:
    """Return for each layer whether it has experts: from the first to the last, where a step divides."""
    end = layers if last is None else last
    return tuple(first <= layer <= end and (layer + 1) % step == 0 for layer in range(layers))


def mixtral(parsed: Any) -> Own:
    """Return experts as wide as a dense MLP would be, in every layer."""
    return {
        "num_experts": parsed.num_local_experts,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.intermediate_size,
    }


def olmoe(parsed: Any) -> Own:
    """Return experts in every layer, with norms of all queries and all keys."""
    return {
        "num_experts": parsed.num_experts,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.intermediate_size,
        **olmo2(parsed),
    }


def gpt_oss(parsed: Any) -> Own:
    """Return experts with biases, and a sink per head."""
    return {**mixtral(parsed), "expert_bias": True, "router_bias": True, "attention_sinks": True}


def qwen2_moe(parsed: Any) -> Own:
    """Return experts in each layer whose number a step divides, next to a gated shared MLP."""
    return {
        **_by_step(parsed),
        "qkv_bias": bool(getattr(parsed, "qkv_bias", True)),
        "shared_intermediate_size": parsed.shared_expert_intermediate_size,
        "shared_gate": True,
    }


def qwen3_moe(parsed: Any) -> Own:
    """Return experts in each layer whose number a step divides."""
    return {**_by_step(parsed), **qwen3(parsed)}


def _by_step(parsed: Any) -> Own:
    dense = set(parsed.mlp_only_layers or ())
    by_step = moe_layers(parsed.num_hidden_layers, step=parsed.decoder_sparse_step)
    moe = tuple(there and layer not in dense for layer, there in enumerate(by_step))
    return {
        "num_experts": parsed.num_experts,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.moe_intermediate_size,
        "moe_layers": moe,
    }


def deepseek(parsed: Any) -> Own:
    """Return latent attention, dense first layers, and shared experts."""
    return {
        **_after_the_dense(parsed),
        **latent(parsed),
        "num_nextn_predict_layers": getattr(parsed, "num_nextn_predict_layers", 0) or 0,
    }


def glm4_moe(parsed: Any) -> Own:
    """Return dense first layers and shared experts; `attention_bias` is of queries, keys and values."""
    return {
        **_after_the_dense(parsed),
        **glm(parsed),
        "qk_norm_size": 2 * head_dim(parsed) if parsed.use_qk_norm else 0,
    }


def _after_the_dense(parsed: Any) -> Own:
    shared = getattr(parsed, "n_shared_experts", None) or getattr(parsed, "num_shared_experts", None) or 0
    kinds = getattr(parsed, "mlp_layer_types", None)
    first = getattr(parsed, "first_k_dense_replace", None) or 0
    count = getattr(parsed, "n_routed_experts", None)
    return {
        "num_experts": parsed.num_experts if count is None else count,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.moe_intermediate_size,
        "shared_intermediate_size": shared * parsed.moe_intermediate_size,
        "moe_layers": tuple(kind == "sparse" for kind in kinds)
        if kinds
        else moe_layers(parsed.num_hidden_layers, first),
    }


def llama4(parsed: Any) -> Own:
    """Return a shared MLP as wide as an expert, and dense layers of another width."""
    return {
        "intermediate_size": parsed.intermediate_size_mlp,
        "num_experts": parsed.num_local_experts,
        "experts_per_token": parsed.num_experts_per_tok,
        "moe_intermediate_size": parsed.intermediate_size,
        "shared_intermediate_size": parsed.intermediate_size,
        "moe_layers": tuple(layer in parsed.moe_layers for layer in range(parsed.num_hidden_layers)),
    }


def granitemoe(parsed: Any) -> Own:
    """Return Mixtral's, next to a shared MLP where the config has its width."""
    return {
        **mixtral(parsed),
        "shared_intermediate_size": getattr(parsed, "shared_intermediate_size", 0) or 0,
    }


def granitemoe_swa(parsed: Any) -> Own:
    """Return Mixtral's, a shared MLP and a sink per head."""
    return {**granitemoe(parsed), **granite_swa(parsed)}


def mellum(parsed: Any) -> Own:
    """Return Mixtral's with a width of its own for experts, and norms of each head's queries and keys."""
    width = parsed.moe_intermediate_size
    return {**mixtral(parsed), "moe_intermediate_size": width, **qwen3(parsed)}


def minimax_m2(parsed: Any) -> Own:
    """Return Mixtral's, with norms of all queries and all keys."""
    return {**mixtral(parsed), **olmo2(parsed)}


def solar_open(parsed: Any) -> Own:
    """Return experts in every layer, next to shared ones."""
    return _after_the_dense(parsed)


def phimoe(parsed: Any) -> Own:
    """Return Mixtral's with LayerNorm, and a bias of the output layer where the config has it."""
    return {**mixtral(parsed), "layer_norm": True, "head_bias": bool(parsed.lm_head_bias)}


def dots1(parsed: Any) -> Own:
    """Return dense first layers and shared experts, with norms of each head's queries and keys."""
    return {**_after_the_dense(parsed), **qwen3(parsed)}


def ernie4_5_moe(parsed: Any) -> Own:
    """Return experts between two layers and at an interval, shared ones, and a correction per expert."""
    first, last = parsed.moe_layer_start_index, parsed.moe_layer_end_index
    last = None if last == -1 else last
    moe = moe_layers(parsed.num_hidden_layers, first, parsed.moe_layer_interval, last)
    return {
        **ernie4_5(parsed),
        "head_bias": bool(parsed.use_bias),
        "router_bias": True,
        "num_experts": parsed.moe_num_experts,
        "experts_per_token": parsed.moe_k,
        "moe_intermediate_size": parsed.moe_intermediate_size,
        "shared_intermediate_size": parsed.moe_num_shared_experts * parsed.moe_intermediate_size,
        "moe_layers": moe,
    }


EXPERTS: Mapping[str, Callable[[Any], Own]] = {
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "dots1": dots1,
    "ernie4_5_moe": ernie4_5_moe,
    "exaone_moe": dots1,
    "flex_olmo": olmoe,
    "glm4_moe": glm4_moe,
    "glm4_moe_lite": deepseek,
    "gpt_oss": gpt_oss,
    "granitemoe": granitemoe,
    "granitemoe_swa": granitemoe_swa,
    "granitemoeshared": granitemoe,
    "llama4_text": llama4,
    "mellum": mellum,
    "minimax_m2": minimax_m2,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "phimoe": phimoe,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "solar_open": solar_open,
}
"""Mixtures of experts by model_type."""
