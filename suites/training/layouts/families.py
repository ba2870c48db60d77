"""What transformers' architectures have besides the sizes that all share: fields of a shape, by model_type.

A field's value is a constant or is computed from the config, which is transformers' own object or as
`config_classes` reads it. Facts: transformers 5.23.0, models/<model_type>/modeling_<model_type>.py. A test
compares each architecture's parameters with those of transformers' own model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.instruments.transformer import LinearMixer
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


def are_linear(parsed: Any) -> tuple[bool, ...]:
    """Return which layers have no attention."""
    return tuple(kind in ("linear_attention", "mamba", "conv") for kind in parsed.layer_types)


def mamba2(
    parsed: Any, heads: int, head_dim: int, groups: int, state: int, chunk: int, bias: bool
) -> LinearMixer:
    """Return Mamba-2's mixer (arXiv 2405.21060, section 7): gate, values, B, C and steps are projected.

    Its vectors: a convolution with its shift, steps' shifts, decays and D per head, and the norm.
    """
    inner, key_size = heads * head_dim, groups * state
    convolved, kernel = inner + 2 * key_size, _stated(parsed, "conv_kernel", "mamba_d_conv")
    shifts = _stated(parsed, "use_conv_bias", "mamba_conv_bias")
    projected = inner + convolved + heads
    biases = projected + parsed.hidden_size if bias else 0
    return LinearMixer(
        name="mamba2",
        projected=projected,
        inner=inner,
        convolved=convolved,
        key_size=key_size,
        heads=heads,
        state=state,
        chunk=chunk,
        vectors=convolved * (kernel + bool(shifts)) + 3 * heads + inner + biases,
    )


def _stated(parsed: Any, *names: str) -> Any:
    return next(getattr(parsed, name) for name in names if hasattr(parsed, name))


def mamba2_of_nemotron(parsed: Any) -> LinearMixer:
    """Return Nemotron-H's Mamba-2."""
    sizes = parsed.mamba_num_heads, parsed.mamba_head_dim, parsed.n_groups, parsed.ssm_state_size
    return mamba2(parsed, *sizes, parsed.chunk_size, parsed.use_bias)


def mamba2_of_granite(parsed: Any) -> LinearMixer:
    """Return the Mamba-2 of Granite 4 and Bamba, whose inner width is a multiple of the hidden size."""
    heads = parsed.mamba_n_heads
    head_dim = parsed.mamba_expand * parsed.hidden_size // heads
    sizes = heads, head_dim, parsed.mamba_n_groups, parsed.mamba_d_state
    return mamba2(parsed, *sizes, parsed.mamba_chunk_size, parsed.mamba_proj_bias)


def mamba_of_jamba(parsed: Any) -> LinearMixer:
    """Return Jamba's Mamba (arXiv 2312.00752) with norms of steps, B and C."""
    inner, state = parsed.mamba_expand * parsed.hidden_size, parsed.mamba_d_state
    rank = -(-parsed.hidden_size // 16) if parsed.mamba_dt_rank == "auto" else parsed.mamba_dt_rank
    small = rank + 2 * state
    biases = 2 * inner + parsed.hidden_size if parsed.mamba_proj_bias else 0
    convolution = inner * (parsed.mamba_d_conv + bool(parsed.mamba_conv_bias))
    return LinearMixer(
        name="mamba",
        projected=2 * inner,
        inner=inner,
        convolved=inner,
        key_size=state,
        heads=inner,
        state=state,
        low_rank=inner * (small + rank),
        vectors=convolution + inner * (2 + state) + small + biases,
    )


def gated_delta(parsed: Any) -> LinearMixer:
    """Return the gated delta net (arXiv 2412.06464): queries, keys, values, gate, decay and strength."""
    heads, head_dim = parsed.linear_num_value_heads, parsed.linear_value_head_dim
    inner, key_size = heads * head_dim, parsed.linear_num_key_heads * parsed.linear_key_head_dim
    convolved = 2 * key_size + inner
    return LinearMixer(
        name="delta",
        projected=convolved + inner + 2 * heads,
        inner=inner,
        convolved=convolved,
        key_size=key_size,
        heads=heads,
        state=parsed.linear_key_head_dim,
        vectors=convolved * parsed.linear_conv_kernel_dim + 2 * heads + head_dim,
    )


def kimi_delta(parsed: Any) -> LinearMixer:
    """Return Kimi Linear's delta attention (arXiv 2510.26692), whose gates are of low rank."""
    heads, head_dim = parsed.linear_num_heads, parsed.linear_head_dim
    inner = heads * head_dim
    return LinearMixer(
        name="kimi_delta",
        projected=3 * inner + heads + 2 * head_dim,
        inner=inner,
        convolved=3 * inner,
        key_size=inner,
        heads=heads,
        state=head_dim,
        low_rank=2 * head_dim * inner,
        vectors=3 * inner * parsed.linear_conv_kernel_dim + inner + heads + head_dim,
    )


def lightning(parsed: Any) -> LinearMixer:
    """Return MiniMax's lightning attention (arXiv 2501.08313) with its norm and gate."""
    inner = parsed.num_attention_heads * head_dim(parsed)
    return LinearMixer(
        name="lightning",
        projected=4 * inner,
        inner=inner,
        key_size=inner,
        heads=parsed.num_attention_heads,
        state=head_dim(parsed),
        chunk=parsed.block_size,
        vectors=inner,
    )


def short_convolution(parsed: Any) -> LinearMixer:
    """Return LFM2's convolution, whose input and result are weighted by projections."""
    hidden, biased = parsed.hidden_size, bool(parsed.conv_bias)
    return LinearMixer(
        name="convolution",
        projected=3 * hidden,
        inner=hidden,
        convolved=hidden,
        vectors=hidden * parsed.conv_L_cache + (5 * hidden if biased else 0),
    )


def width_of_lfm2(parsed: Any) -> int:
    """Return the width of LFM2's MLP: two thirds of what is stated, as a multiple."""
    width = int(parsed.intermediate_size)
    if not parsed.block_auto_adjust_ff_dim:
        return width
    multiple = int(parsed.block_multiple_of)
    return multiple * -(-int(parsed.block_ffn_dim_multiplier * int(2 * width / 3)) // multiple)


def blocks_of(*names: str) -> Callable[[Any], tuple[bool, ...]]:
    """Return what reads which layers of Nemotron-H are of a kind."""
    return lambda parsed: tuple(kind in names for kind in parsed.layers_block_type)


GATED_DELTA: Own = {
    **HEAD_NORMS,
    "attention_gate": True,
    "mixer": gated_delta,
    "linear_layers": are_linear,
}

CONVOLUTIONS: Own = {
    **HEAD_NORMS,
    "mixer": short_convolution,
    "linear_layers": are_linear,
}

GRANITE_HYBRID: Own = {"mixer": mamba2_of_granite, "linear_layers": are_linear}

HYBRIDS: Mapping[str, Own] = {
    "bamba": GRANITE_HYBRID,
    "granitemoehybrid": {
        **GRANITE_HYBRID,
        "num_experts": optional("num_local_experts"),
        "experts_per_token": size("num_experts_per_tok"),
        "moe_intermediate_size": size("intermediate_size"),
        "shared_intermediate_size": size("shared_intermediate_size"),
        "intermediate_size": size("shared_intermediate_size"),  # of a model without experts
    },
    "jamba": {
        "mixer": mamba_of_jamba,
        "linear_layers": are_linear,
        "num_experts": size("num_experts"),
        "experts_per_token": size("num_experts_per_tok"),
        "moe_intermediate_size": size("intermediate_size"),
        "moe_layers": lambda parsed: tuple(
            layer % parsed.expert_layer_period == parsed.expert_layer_offset and parsed.num_experts > 1
            for layer in range(parsed.num_hidden_layers)
        ),
    },
    "kimi_linear": {**AFTER_THE_DENSE, **LATENT, "mixer": kimi_delta, "linear_layers": are_linear},
    "lfm2": {**CONVOLUTIONS, "intermediate_size": width_of_lfm2},
    "lfm2_moe": {
        **CONVOLUTIONS,
        **BY_STEP,
        "moe_layers": lambda parsed: moe_layers(parsed.num_hidden_layers, parsed.num_dense_layers),
    },
    "minimax": {**MIXTRAL, "mixer": lightning, "linear_layers": are_linear},
    "nemotron_h": {  # each layer has one part alone, and experts may take less than the hidden size
        "gated": False,
        "norms_per_layer": 1,
        "qkv_bias": False,
        "attention_output_bias": False,
        "mixer": mamba2_of_nemotron,
        "linear_layers": blocks_of("linear_attention", "mamba"),
        "mlp_layers": blocks_of("mlp", "moe"),
        "moe_layers": blocks_of("moe"),
        "num_experts": lambda parsed: parsed.n_routed_experts if "moe" in parsed.layers_block_type else 0,
        "experts_per_token": size("num_experts_per_tok"),
        "moe_intermediate_size": size("moe_intermediate_size"),
        "shared_intermediate_size": size("moe_shared_expert_intermediate_size"),
        "expert_bias": False,
        "moe_latent_size": optional("moe_latent_size"),
        "num_nextn_predict_layers": optional("num_nextn_predict_layers"),
    },
    "olmo_hybrid": {**ALL_HEADS_NORMS, "mixer": gated_delta, "linear_layers": are_linear},
    "qwen3_5_moe_text": {
        **GATED_DELTA,
        "num_experts": size("num_experts"),
        "experts_per_token": size("num_experts_per_tok"),
        "moe_intermediate_size": size("moe_intermediate_size"),
        "shared_intermediate_size": size("shared_expert_intermediate_size"),
        "shared_gate": True,
    },
    "qwen3_5_text": GATED_DELTA,
    "qwen3_next": {
        **BY_STEP,
        **GATED_DELTA,
        "shared_intermediate_size": size("shared_expert_intermediate_size"),
        "shared_gate": True,
    },
}
"""Hybrids: state spaces, linear attention or convolutions in attention's place in most layers."""

ARCHITECTURES: Mapping[str, Own] = {**DENSE, **OLDER, **EXPERTS, **HYBRIDS}
"""Architectures by model_type."""
