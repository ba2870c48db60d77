"""Hugging Face configs from a decoder's sizes and back, for files that list sizes in other words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class DecoderSizes(NamedTuple):
    """Sizes of a decoder as Megatron-LM's arguments have them."""

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
    experts_per_token: int = 2
    moe_intermediate_size: int | None = None
    shared_intermediate_size: int | None = None
    shared_gate: bool = False  # the shared expert's result is weighted
    dense_layers: int = 0  # of a mixture of experts, from the first
    moe_layers: tuple[bool, ...] = ()  # which layers have experts, where dense ones do not come first alone
    next_layers: int = 0  # of multi-token prediction
    dropout: float = 0.0
    latent: bool = False  # multi-head latent attention, whose sizes follow
    q_lora_rank: int | None = None
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0


USUAL = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings"),
)
GPT2 = ("n_layer", "n_embd", "n_head", "n_inner", "n_positions")
"""How configs call layers, hidden size, heads, the MLP's width and positions."""

USUAL_DROPOUT = 0.1
"""Of GPT-2's config class, and of Megatron-LM's arguments."""

LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""How configs of different models call the number of experts."""

MODERN = ("llama", "qwen2", "qwen3", "mixtral", "qwen3_moe", "glm4_moe", "deepseek_v3")
"""Architectures with RMSNorm and gated MLPs."""

STATED = {
    "experts_per_token": "num_experts_per_tok",
    "shared_intermediate_size": "shared_expert_intermediate_size",
    "bias": "mlp_bias",
    "qk_norm": "qk_norm_size",
    "tied": "tie_word_embeddings",
    "positions": "max_position_embeddings",
    "latent": "kv_lora_rank",
    "next_layers": "num_nextn_predict_layers",
    "dropout": "hidden_dropout",
    "gated": "gated_mlp",
}
"""Names of sizes in a config without a type, where they differ."""

WRITTEN = (*MODERN, "gpt2", "gpt_neox")
"""Those of which `sizes_of` returns the sizes."""


def sizes_of_parts(parts: Mapping[str, Any], **others: Any) -> DecoderSizes:
    """Return sizes from a framework's parts, which are named as they are, with others in their place."""
    given = {name: parts.get(f"_{name}") for name in DecoderSizes._fields}
    return DecoderSizes(**({name: size for name, size in given.items() if size is not None} | others))


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
    if sizes.dropout:
        common["hidden_dropout"] = sizes.dropout
    if sizes.rms_norm and sizes.gated:
        return common | _modern(sizes, width)
    if sizes.gated and not sizes.num_experts:
        return {"model_type": "stablelm", **common}
    if sizes.num_experts or sizes.rms_norm:
        raise ValueError(
            "experts without gates, or RMSNorm without gated MLPs, are no architecture known here"
        )
    if sizes.learned_positions:
        sized = (sizes.num_hidden_layers, sizes.hidden_size, sizes.num_attention_heads, width)
        named = dict(zip(GPT2, (*sized, sizes.positions or 1024), strict=True))
        same = {"vocab_size": sizes.vocab_size, "tie_word_embeddings": sizes.tied}
        rate = {} if sizes.dropout == USUAL_DROPOUT else {"resid_pdrop": sizes.dropout}
        return {"model_type": "gpt2", **named, **same, **rate}
    return {"model_type": "gpt_neox", **common}


def sizes_alone(sizes: DecoderSizes) -> dict[str, Any]:
    """Return sizes as a config without a type, which suites/training/layouts takes: of layers that no
    architecture of transformers has."""
    width, heads = sizes.intermediate_size or 4 * sizes.hidden_size, sizes.num_attention_heads
    head_dim, latent = sizes.head_dim or sizes.hidden_size // heads, sizes.latent
    if latent:
        head_dim = sizes.qk_nope_head_dim + sizes.qk_rope_head_dim
    left_out = {"rms_norm", "dense_layers", "latent", "moe_layers", *(() if latent else LATENT)}
    if not sizes.num_experts:
        left_out |= {"experts_per_token", "moe_intermediate_size", "shared_intermediate_size", "shared_gate"}
    plain = {STATED.get(name, name): size for name, size in sizes._asdict().items() if name not in left_out}
    given: dict[str, Any] = plain | {
        "num_key_value_heads": sizes.num_key_value_heads or heads,
        "head_dim": head_dim,
        "intermediate_size": width,
        "layer_norm": not sizes.rms_norm,
        "attention_bias": sizes.bias and not latent,
        "qkv_bias": (sizes.bias or sizes.qkv_bias) and not latent,
        "learned_positions": (sizes.positions or 0) if sizes.learned_positions else 0,
        "qk_norm_size": 2 * head_dim * (1 if sizes.rms_norm else 2) if sizes.qk_norm and not latent else 0,
    }
    if sizes.num_experts:
        moe = sizes.moe_layers or [layer >= sizes.dense_layers for layer in range(sizes.num_hidden_layers)]
        own = sizes.moe_intermediate_size or width
        given |= {"moe_intermediate_size": own, "expert_bias": sizes.bias, "moe_layers": list(moe)}
    kept = ("gated_mlp", "layer_norm")
    return {name: value for name, value in given.items() if value or name in kept}


def sizes_stated(config: Mapping[str, Any]) -> DecoderSizes:
    """Return the sizes of a config without a type: the inverse of `sizes_alone`."""
    found = {name: config.get(STATED.get(name, name)) or None for name in DecoderSizes._fields}
    flags = {name: bool(found[name]) for name in ("bias", "qkv_bias", "qk_norm", "tied", "latent", "gated")}
    sizes = DecoderSizes(**{name: size for name, size in found.items() if size is not None} | flags)
    kinds = tuple(map(bool, config.get("moe_layers") or ()))
    return sizes._replace(
        rms_norm=not config.get("layer_norm"),
        learned_positions=bool(config.get("learned_positions")),
        moe_layers=() if all(kinds) else kinds,
        head_dim=None if sizes.latent else sizes.head_dim,
    )


def has_architecture(sizes: DecoderSizes) -> bool:
    """Return whether `config_of` gives an architecture with exactly these layers."""
    modern, experts, layers = sizes.rms_norm and sizes.gated, sizes.num_experts, sizes.moe_layers
    heads, groups = sizes.num_attention_heads, sizes.num_key_value_heads
    irregular = layers or sizes.shared_gate or (sizes.next_layers and not sizes.latent)
    if irregular or (modern and sizes.learned_positions):
        return False
    if modern and (sizes.latent or experts):
        own = sizes.moe_intermediate_size or sizes.intermediate_size or 4 * sizes.hidden_size
        whole, listed = not (sizes.shared_intermediate_size or 0) % own, sizes.shared_intermediate_size
        biased = sizes.bias or (sizes.qkv_bias and (sizes.latent or not (listed or sizes.dense_layers)))
        return whole and not biased
    if modern:
        return not sizes.bias and not (sizes.qkv_bias and sizes.qk_norm)
    plain = not (sizes.rms_norm or experts or sizes.latent or sizes.qk_norm)
    if sizes.gated:
        return plain and not (sizes.bias or sizes.qkv_bias or sizes.learned_positions)
    square = groups in (None, heads) and sizes.head_dim in (None, sizes.hidden_size // heads)
    return plain and square and sizes.bias


def _modern(sizes: DecoderSizes, width: int) -> dict[str, Any]:
    """Return what an architecture with RMSNorm and gated MLPs has besides.

    glm4_moe's has dense first layers and shared experts next to grouped-query attention. Raises ValueError
    where shared experts are no whole number of others, which no architecture has.
    """
    if not sizes.num_experts and not sizes.latent:
        return {"model_type": "qwen3" if sizes.qk_norm else "qwen2" if sizes.qkv_bias else "llama"}
    own, shared = sizes.moe_intermediate_size or width, sizes.shared_intermediate_size or 0
    experts = {
        "n_routed_experts": sizes.num_experts,
        "num_experts_per_tok": sizes.experts_per_token,
        "moe_intermediate_size": own,
        "n_shared_experts": shared // own,
        "first_k_dense_replace": sizes.dense_layers,
    }
    if sizes.next_layers:
        experts["num_nextn_predict_layers"] = sizes.next_layers
    if sizes.latent:
        if not sizes.num_experts:
            experts = {"first_k_dense_replace": sizes.num_hidden_layers}
        return {"model_type": "deepseek_v3", **{name: getattr(sizes, name) for name in LATENT}, **experts}
    if shared % own:
        raise ValueError(
            f"a shared expert of width {shared} next to experts of {own} is no architecture known here"
        )
    if shared or sizes.dense_layers:
        more = {"use_qk_norm": sizes.qk_norm, "attention_bias": sizes.qkv_bias}
        return {"model_type": "glm4_moe", **more, **experts}
    count, per_token = sizes.num_experts, {"num_experts_per_tok": sizes.experts_per_token}
    if sizes.qk_norm:
        return {"model_type": "qwen3_moe", "num_experts": count, "moe_intermediate_size": own, **per_token}
    return {"model_type": "mixtral", "num_local_experts": count, "intermediate_size": own, **per_token}


def sizes_of(config: Mapping[str, Any]) -> DecoderSizes:
    """Return the sizes of a config: the inverse of `config_of`; raises ValueError for other architectures."""
    kind = config.get("model_type")
    if config.get("hybrid_layer_pattern"):
        raise ValueError("a hybrid's kinds of layers are not written")
    if kind is None and "gated_mlp" in config:
        return sizes_stated(config)
    if kind not in WRITTEN:
        known = ", ".join(WRITTEN)
        raise ValueError(f"model_type is {kind}, whose sizes are not written; they are of {known}")
    learned, modern = kind == "gpt2", kind in MODERN
    layers, hidden, heads, inner, positions = GPT2 if learned else USUAL
    experts = next((config[name] for name in EXPERTS if config.get(name)), 0)
    own = (config.get("moe_intermediate_size") or config[inner]) if experts else None
    return DecoderSizes(
        num_hidden_layers=config[layers],
        hidden_size=config[hidden],
        num_attention_heads=config[heads],
        vocab_size=config["vocab_size"],
        num_key_value_heads=config.get("num_key_value_heads") or config[heads],
        head_dim=config.get("head_dim"),
        intermediate_size=config.get(inner),
        gated=modern,
        rms_norm=modern,
        bias=not modern,
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias")),
        qk_norm=kind in ("qwen3", "qwen3_moe") or bool(config.get("use_qk_norm")),
        tied=config.get("tie_word_embeddings", learned),
        positions=config.get(positions),
        learned_positions=learned,
        num_experts=experts,
        experts_per_token=config.get("num_experts_per_tok", 2),
        moe_intermediate_size=own,
        shared_intermediate_size=(config.get("n_shared_experts") or 0) * (own or 0) or None,
        dense_layers=config.get("first_k_dense_replace") or 0 if experts else 0,
        latent=kind == "deepseek_v3",
        next_layers=(config.get("num_nextn_predict_layers") or 0) if kind == "deepseek_v3" else 0,
        dropout=config.get("resid_pdrop", USUAL_DROPOUT) if learned else config.get("hidden_dropout") or 0.0,
        **{name: config[name] for name in LATENT if name in config},
    )
