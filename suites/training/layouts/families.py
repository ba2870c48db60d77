"""What transformers' architectures have besides the sizes that all share: fields of a shape, by model_type.

A field's value is a constant or is computed from the config, which is transformers' own object or as
`config_classes` reads it. Facts: transformers 5.23.0, models/<model_type>/modeling_<model_type>.py. A test
compares each architecture's parameters with those of transformers' own model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.records import Unavailable

Own = Mapping[str, Any]
"""Fields of a shape, each a value or a function of the config that returns it."""


def computed(own: Own, parsed: Any) -> dict[str, Any]:
    """Return the fields with the values that they have of one config."""
    return {name: value(parsed) if callable(value) else value for name, value in own.items()}


def size(name: str) -> Callable[[Any], Any]:
    """Return what reads a key of the config."""
    return lambda parsed: getattr(parsed, name)


def optional(name: str) -> Callable[[Any], Any]:
    """Return what reads a key that a config may lack; 0 without it."""
    return lambda parsed: getattr(parsed, name, 0) or 0


def flag(name: str, default: bool = False) -> Callable[[Any], bool]:
    """Return what reads a flag that a config may lack."""
    return lambda parsed: bool(getattr(parsed, name, default))


def rate(name: str) -> Callable[[Any], float]:
    """Return what reads a rate of dropout."""
    return lambda parsed: float(getattr(parsed, name))


def head_dim(parsed: Any) -> int:
    """Return the size of a head, of which some configs state nothing."""
    return int(getattr(parsed, "head_dim", None) or parsed.hidden_size // parsed.num_attention_heads)


def norms_of_heads(parsed: Any) -> int:
    """Return the parameters of norms that the queries of all heads share, and so the keys."""
    return 2 * head_dim(parsed)


def norms_of_each_head(parsed: Any) -> int:
    """Return the parameters of norms of all queries and all keys."""
    return head_dim(parsed) * int(parsed.num_attention_heads + parsed.num_key_value_heads)


def shifted_norms_of_heads(parsed: Any) -> int:
    """Return the parameters of LayerNorms of heads, where the config has them."""
    return 4 * head_dim(parsed) if parsed.qk_layernorm else 0


def inner_width(parsed: Any) -> int:
    """Return the width of GPT-2's MLP."""
    return int(parsed.n_inner or 4 * parsed.hidden_size)


def width_of_opt(parsed: Any) -> int:
    """Return the width of OPT's MLP; raises `Unavailable` for norms after, or embeddings of another width."""
    if parsed.word_embed_proj_dim != parsed.hidden_size or not parsed.do_layer_norm_before:
        raise Unavailable(
            f"opt: word_embed_proj_dim={parsed.word_embed_proj_dim}, do_layer_norm_before="
            f"{parsed.do_layer_norm_before}: layouts are answered for {parsed.hidden_size} and true"
        )
    return int(parsed.ffn_dim)


def key_value_heads_of_falcon(parsed: Any) -> int:
    """Return Falcon's key-value heads: of the older architecture one, or as many as heads."""
    if parsed.new_decoder_architecture:
        return int(parsed.num_kv_heads)
    return 1 if parsed.multi_query else int(parsed.num_attention_heads)


def norms_of_falcon(parsed: Any) -> int:
    """Return the norms of a layer: where attention is parallel, two of the new architecture, else one."""
    stated = getattr(parsed, "num_ln_in_parallel_attn", None) or (2 if parsed.new_decoder_architecture else 1)
    return int(stated) if parsed.parallel_attn else 2


def moe_layers(layers: int, first: int = 0, step: int = 1, last: int | None = None) -> tuple[bool, ...]:
    """Return for each layer whether it has experts: from the first to the last, where a step divides."""
    end = layers if last in (None, -1) else last
    return tuple(first <= layer <= end and (layer + 1) % step == 0 for layer in range(layers))


def by_step(parsed: Any) -> tuple[bool, ...]:
    """Return which layers have experts: those whose number a step divides, but for listed ones."""
    dense = set(parsed.mlp_only_layers or ())
    there = moe_layers(parsed.num_hidden_layers, step=parsed.decoder_sparse_step)
    return tuple(moe and layer not in dense for layer, moe in enumerate(there))


def after_the_dense(parsed: Any) -> tuple[bool, ...]:
    """Return which layers have experts: those listed, or all after the first dense ones."""
    if kinds := getattr(parsed, "mlp_layer_types", None):
        return tuple(kind == "sparse" for kind in kinds)
    return moe_layers(parsed.num_hidden_layers, getattr(parsed, "first_k_dense_replace", None) or 0)


def routed_experts(parsed: Any) -> int:
    """Return the number of experts, by either name."""
    count = getattr(parsed, "n_routed_experts", None)
    return int(parsed.num_experts if count is None else count)


def shared_width(parsed: Any) -> int:
    """Return the width of all shared experts."""
    shared = getattr(parsed, "n_shared_experts", None) or getattr(parsed, "num_shared_experts", None) or 0
    return int(shared * parsed.moe_intermediate_size)


PLAIN: Own = {}
"""RMSNorm, SwiGLU, rotary embedding."""

LAYER_NORM: Own = {"layer_norm": True, "gated": False}
"""LayerNorm and MLPs of two matrices."""

BIASES: Own = {"qkv_bias": True, "attention_output_bias": True, "mlp_bias": True}
HEAD_NORMS: Own = {"qk_norm_size": norms_of_heads}
ALL_HEADS_NORMS: Own = {"qk_norm_size": norms_of_each_head}
SINKS: Own = {"attention_sinks": True}

GLM: Own = {"qkv_bias": flag("attention_bias"), "attention_output_bias": False}

LATENT: Own = {
    "num_key_value_heads": size("num_attention_heads"),
    "head_dim": lambda parsed: parsed.qk_nope_head_dim + parsed.qk_rope_head_dim,
    "q_lora_rank": lambda parsed: parsed.q_lora_rank or 0,
    "kv_lora_rank": size("kv_lora_rank"),
    "qk_rope_head_dim": size("qk_rope_head_dim"),
    "v_head_dim": size("v_head_dim"),
}
"""Multi-head latent attention (arXiv 2405.04434, section 2.1)."""

COHERE: Own = {  # one norm for attention and MLP at once
    "norms_per_layer": 1,
    "qk_norm_size": lambda parsed: norms_of_each_head(parsed) if getattr(parsed, "use_qk_norm", 0) else 0,
}

DENSE: Mapping[str, Own] = {
    **dict.fromkeys(("cwm", "gemma", "granite", "internlm3", "iquestcoder", "llama", "ministral"), PLAIN),
    **dict.fromkeys(("ministral3", "mistral", "phi3", "smollm3", "vaultgemma"), PLAIN),
    **dict.fromkeys(("exaone4", "hunyuan_v1_dense", "qwen3"), HEAD_NORMS),
    **dict.fromkeys(("jais2", "nemotron"), LAYER_NORM),
    **dict.fromkeys(("minicpm3", "youtu"), LATENT),
    **dict.fromkeys(("cohere", "cohere2"), COHERE),
    **dict.fromkeys(("olmo2", "olmo3"), ALL_HEADS_NORMS),
    **dict.fromkeys(("glm", "helium"), GLM),
    "apertus": {  # two parameters of the activation
        "gated": False,
        "qk_norm_size": lambda parsed: norms_of_heads(parsed) + (2 if parsed.hidden_act == "xielu" else 0),
    },
    "arcee": {"gated": False},
    "ernie4_5": dict.fromkeys(BIASES, flag("use_bias")),
    "gemma2": {"norms_per_layer": 4},
    "gemma3_text": {"norms_per_layer": 4, **HEAD_NORMS},
    "glm4": {"norms_per_layer": 4, **GLM},
    "granite_swa": SINKS,
    "hyperclovax": {"norms_per_layer": lambda parsed: 4 if parsed.use_post_norm else 2},
    "nanochat": {"gated": False, "norm_weights": False},
    "olmo": {"norm_weights": False},
    "qwen2": {"qkv_bias": True},
    "seed_oss": {"attention_output_bias": flag("attention_out_bias")},
    "stablelm": {
        "layer_norm": True,
        "norms_per_layer": lambda parsed: 1 if parsed.use_parallel_residual else 2,
        "qkv_bias": flag("use_qkv_bias"),
        "qk_norm_size": lambda parsed: norms_of_each_head(parsed) if parsed.qk_layernorm else 0,
    },
}
"""Dense architectures with RMSNorm and rotary embedding, most of them Llama's descendants."""

GPT2: Own = {
    **LAYER_NORM,
    **BIASES,
    "learned_positions": size("max_position_embeddings"),
    "intermediate_size": inner_width,
    "dropout": rate("resid_pdrop"),
}

GPTJ: Own = {  # one norm per layer, for attention and MLP at once
    **LAYER_NORM,
    "mlp_bias": True,
    "head_bias": True,
    "norms_per_layer": 1,
    "intermediate_size": inner_width,
    "dropout": rate("resid_pdrop"),
}

OLDER: Mapping[str, Own] = {
    "biogpt": {
        **LAYER_NORM,
        **BIASES,
        "learned_positions": lambda parsed: parsed.max_position_embeddings + 2,
        "dropout": rate("hidden_dropout_prob"),
    },
    "bloom": {  # a norm of the embedding besides the last
        **LAYER_NORM,
        **BIASES,
        "outer_norms": 2,
        "intermediate_size": lambda parsed: 4 * parsed.hidden_size,
        "dropout": rate("hidden_dropout"),
    },
    "codegen": GPTJ,
    "falcon": {
        **LAYER_NORM,
        **dict.fromkeys(BIASES, flag("bias")),
        "num_key_value_heads": key_value_heads_of_falcon,
        "norms_per_layer": norms_of_falcon,
        "intermediate_size": size("ffn_hidden_size"),
        "dropout": rate("hidden_dropout"),
    },
    "gpt2": GPT2,
    "gpt_bigcode": {
        **GPT2,
        "num_key_value_heads": lambda parsed: 1 if parsed.multi_query else parsed.num_attention_heads,
    },
    "gpt_neo": {
        **LAYER_NORM,
        "attention_output_bias": True,
        "mlp_bias": True,
        "learned_positions": size("max_position_embeddings"),
        "dropout": rate("resid_dropout"),
    },
    "gpt_neox": {**LAYER_NORM, "mlp_bias": True, "dropout": rate("hidden_dropout")},
    "gptj": GPTJ,
    "mpt": {  # norms without a shift and no biases, whatever the config says of them
        "gated": False,
        "intermediate_size": lambda parsed: int(parsed.expansion_ratio * parsed.hidden_size),
        "dropout": rate("resid_pdrop"),
    },
    "openai-gpt": {
        **LAYER_NORM,
        **BIASES,
        "outer_norms": 0,
        "learned_positions": size("n_positions"),
        "dropout": rate("resid_pdrop"),
    },
    "opt": {
        **dict.fromkeys(BIASES, flag("enable_bias")),
        "gated": False,
        "layer_norm": flag("layer_norm_elementwise_affine"),
        "norm_weights": flag("layer_norm_elementwise_affine"),
        "outer_norms": lambda parsed: 0 if parsed._remove_final_layer_norm else 1,
        "intermediate_size": width_of_opt,
        "learned_positions": lambda parsed: parsed.max_position_embeddings + 2,
        "dropout": rate("dropout"),
    },
    "persimmon": {
        **LAYER_NORM,
        **BIASES,
        "qk_norm_size": shifted_norms_of_heads,
        "dropout": rate("hidden_dropout"),
    },
    "phi": {  # one norm per layer, for attention and MLP at once
        **LAYER_NORM,
        **BIASES,
        "head_bias": True,
        "norms_per_layer": 1,
        "qk_norm_size": shifted_norms_of_heads,
        "dropout": rate("resid_pdrop"),
    },
    "starcoder2": {**LAYER_NORM, **dict.fromkeys(BIASES, flag("use_bias"))},
    "xglm": {**LAYER_NORM, **BIASES, "intermediate_size": size("ffn_dim"), "dropout": rate("dropout")},
}
"""GPT-2's descendants, Falcon, MPT, BLOOM, OPT: LayerNorm and MLPs of two matrices."""

MIXTRAL: Own = {  # experts as wide as a dense MLP would be
    "num_experts": size("num_local_experts"),
    "experts_per_token": size("num_experts_per_tok"),
    "moe_intermediate_size": size("intermediate_size"),
}

OLMOE: Own = {**MIXTRAL, "num_experts": size("num_experts"), **ALL_HEADS_NORMS}

BY_STEP: Own = {
    "num_experts": size("num_experts"),
    "experts_per_token": size("num_experts_per_tok"),
    "moe_intermediate_size": size("moe_intermediate_size"),
    "moe_layers": by_step,
}

AFTER_THE_DENSE: Own = {
    "num_experts": routed_experts,
    "experts_per_token": size("num_experts_per_tok"),
    "moe_intermediate_size": size("moe_intermediate_size"),
    "shared_intermediate_size": shared_width,
    "moe_layers": after_the_dense,
}

DEEPSEEK: Own = {
    **AFTER_THE_DENSE,
    **LATENT,
    "num_nextn_predict_layers": optional("num_nextn_predict_layers"),
}

DOTS1: Own = {**AFTER_THE_DENSE, **HEAD_NORMS}
GRANITEMOE: Own = {**MIXTRAL, "shared_intermediate_size": optional("shared_intermediate_size")}

EXPERTS: Mapping[str, Own] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), DEEPSEEK),
    **dict.fromkeys(("dots1", "exaone_moe"), DOTS1),
    **dict.fromkeys(("flex_olmo", "olmoe"), OLMOE),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), GRANITEMOE),
    "ernie4_5_moe": {  # experts between two layers and at an interval, and a correction per expert
        **dict.fromkeys(BIASES, flag("use_bias")),
        "head_bias": flag("use_bias"),
        "router_bias": True,
        "num_experts": size("moe_num_experts"),
        "experts_per_token": size("moe_k"),
        "moe_intermediate_size": size("moe_intermediate_size"),
        "shared_intermediate_size": lambda parsed: (
            parsed.moe_num_shared_experts * parsed.moe_intermediate_size
        ),
        "moe_layers": lambda parsed: moe_layers(
            parsed.num_hidden_layers,
            parsed.moe_layer_start_index,
            parsed.moe_layer_interval,
            parsed.moe_layer_end_index,
        ),
    },
    "glm4_moe": {
        **AFTER_THE_DENSE,
        **GLM,
        "qk_norm_size": lambda parsed: norms_of_heads(parsed) if parsed.use_qk_norm else 0,
    },
    "gpt_oss": {**MIXTRAL, "expert_bias": True, "router_bias": True, **SINKS},
    "granitemoe_swa": {**GRANITEMOE, **SINKS},
    "llama4_text": {  # a shared MLP as wide as an expert, and dense layers of another width
        **MIXTRAL,
        "intermediate_size": size("intermediate_size_mlp"),
        "shared_intermediate_size": size("intermediate_size"),
        "moe_layers": lambda parsed: tuple(
            layer in parsed.moe_layers for layer in range(parsed.num_hidden_layers)
        ),
    },
    "mellum": {**MIXTRAL, "moe_intermediate_size": size("moe_intermediate_size"), **HEAD_NORMS},
    "minimax_m2": {**MIXTRAL, **ALL_HEADS_NORMS},
    "mixtral": MIXTRAL,
    "phimoe": {**MIXTRAL, "layer_norm": True, "head_bias": flag("lm_head_bias")},
    "qwen2_moe": {
        **BY_STEP,
        "qkv_bias": flag("qkv_bias", default=True),
        "shared_intermediate_size": size("shared_expert_intermediate_size"),
        "shared_gate": True,
    },
    "qwen3_moe": {**BY_STEP, **HEAD_NORMS},
    "solar_open": AFTER_THE_DENSE,
}
"""Mixtures of experts: of every layer, of layers by a step, and after dense first layers."""

ARCHITECTURES: Mapping[str, Own] = {**DENSE, **OLDER, **EXPERTS}
"""Architectures by model_type."""
