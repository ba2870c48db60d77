"""The shape of a Hugging Face config.json, for architectures whose parameters are counted exactly.

Neither torch nor transformers is needed: the defaults of transformers' classes are a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from harness.config.hf_config import fault, has_own_code, shown, unknown_model_type
from harness.instruments.transformer import TransformerShape
from harness.records import Unavailable
from suites.training.layouts.config_classes import blocks_of_pattern, config_values
from suites.training.layouts.families import (
    ARCHITECTURES,
    LATENT,
    Own,
    computed,
    flag,
    head_dim,
    mamba2,
    moe_layers,
    size,
)

SIZES_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads")
"""Sizes without which a model has no shape."""

OF_ALL: Own = {
    **{name: size(name) for name in (*SIZES_NEEDED, "vocab_size")},
    "num_key_value_heads": lambda parsed: (
        getattr(parsed, "num_key_value_heads", None) or parsed.num_attention_heads
    ),
    "head_dim": head_dim,
    "intermediate_size": lambda parsed: getattr(parsed, "intermediate_size", None) or 4 * parsed.hidden_size,
    "tie_word_embeddings": flag("tie_word_embeddings"),
    "qkv_bias": flag("attention_bias"),
    "attention_output_bias": flag("attention_bias"),
    "mlp_bias": flag("mlp_bias"),
    "dropout": lambda parsed: float(getattr(parsed, "hidden_dropout", 0) or 0),
}
"""What all architectures share."""


def shape_of_config(config: Mapping[str, Any]) -> TransformerShape:
    """Return the shape of a config.json's content; raises `Unavailable` with one line where it has none."""
    values = config_values(config)
    if values is None:
        model_type = str(config.get("model_type"))
        raise Unavailable(unknown_model_type(model_type, has_own_code(config)) or _other(model_type))
    try:
        return shape_of_parsed(values)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f": {error}" if isinstance(error, AttributeError | ValueError) else ""
        raise Unavailable(
            f"config.json of model_type {values.model_type!r}: its sizes give no model{why}"
        ) from error


def shape_of_parsed(parsed: Any) -> TransformerShape:
    """Return the shape of transformers' own config object; raises `Unavailable` for other architectures."""
    if parsed.model_type not in ARCHITECTURES:
        raise Unavailable(_other(parsed.model_type))
    return _shape(parsed, ARCHITECTURES[parsed.model_type])


def _other(model_type: str) -> str:
    return (
        f"model_type {model_type!r}: layouts are answered for {len(ARCHITECTURES)} decoders, such as llama, "
        "qwen3, mixtral, deepseek_v3, nemotron_h, qwen3_next, falcon; harness.fit answers for it without "
        "layout="
    )


def _shape(parsed: Any, own: Own) -> TransformerShape:
    """Return the shape of sizes by transformers' names, with what an architecture has besides."""
    fields = computed(own, parsed)
    return TransformerShape(**{**computed(OF_ALL, parsed), **windows(parsed), **fields})


def windows(parsed: Any) -> dict[str, Any]:
    """Return which layers see a window alone."""
    window = getattr(parsed, "sliding_window", None) or getattr(parsed, "attention_chunk_size", None)
    kinds = getattr(parsed, "layer_types", None) or []
    seen = tuple(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    if not window or not (any(seen) or (not kinds and parsed.model_type == "mistral")):
        return {}
    return {"sliding_window": int(window), "windowed_layers": seen}


def shape_without_type(config: Mapping[str, Any]) -> TransformerShape:
    """Return the shape of sizes whose architecture nobody states; raises KeyError without `SIZES_NEEDED`.

    Raises `Unavailable` with one line that names a size which no model can have.

    What the sizes show is taken, and no biases or inner norms. `gated_mlp` is a key of its own: without a
    gate, norms have biases. Other fields of a shape are taken where the config has them (`STATED`).
    """
    refuse_sizes(config)
    parsed = SimpleNamespace(
        **{
            "model_type": "",
            "qk_nope_head_dim": 128,
            "v_head_dim": 0,
            **config,
            **{name: int(config[name]) for name in SIZES_NEEDED},
            **{name: int(config.get(name) or 0) for name in ("q_lora_rank", *EXPERT_SIZES)},
            "qk_rope_head_dim": int(config.get("qk_rope_head_dim") or 64),
            "vocab_size": int(config.get("vocab_size") or 32000),
        }
    )
    gated = config.get("gated_mlp", True)
    experts = EXPERTS_OF_SIZES if config.get("num_experts") else {}
    of_latent = LATENT if config.get("kv_lora_rank") else {}
    stated: dict[str, Any] = {name: config[name] for name in STATED if name in config}
    if "moe_layers" in stated:
        stated["moe_layers"] = tuple(map(bool, stated["moe_layers"]))
    if pattern := config.get("hybrid_layer_pattern"):
        stated |= hybrid_of(parsed, blocks_of_pattern(pattern))
    if config.get("num_nextn_predict_layers"):
        stated["num_nextn_predict_layers"] = int(config["num_nextn_predict_layers"])
    return _shape(parsed, {"gated": gated, "layer_norm": not gated, **experts, **of_latent, **stated})


def refuse_sizes(config: Mapping[str, Any]) -> None:
    """Raise `Unavailable` for sizes without an architecture that are no whole numbers or too small."""
    least = dict.fromkeys(EXPERT_SIZES, 0) | dict.fromkeys((*SIZES_NEEDED, *MAMBA_SIZES), 1)
    for name, lowest in least.items():
        value = config.get(name)
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
        if value is not None and not (whole and value >= lowest):
            raise Unavailable(f"model: {fault(name, value, f'a whole number of at least {lowest}')}")
    if (pattern := config.get("hybrid_layer_pattern")) is None:
        return
    try:
        blocks = blocks_of_pattern(pattern)
    except ValueError as error:
        raise Unavailable(f"model: hybrid_layer_pattern is {shown(pattern)}; {error}") from None
    if len(blocks) != config["num_hidden_layers"]:
        layers = config["num_hidden_layers"]
        raise Unavailable(
            f"model: hybrid_layer_pattern has {len(blocks)} layers and num_hidden_layers is {layers}"
        )
    if missing := [name for name in MAMBA_SIZES if "M" in pattern and not config.get(name)]:
        raise Unavailable(f"model: {missing[0]} is missing, which hybrid_layer_pattern needs")


MAMBA_SIZES = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size")


def hybrid_of(parsed: Any, blocks: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a hybrid whose layers have one part: Mamba-2, attention, an MLP or experts."""
    # a pattern without Mamba-2 needs none of its sizes
    heads, head_dim, groups, state = (int(getattr(parsed, name, 1)) for name in MAMBA_SIZES)
    usual = SimpleNamespace(conv_kernel=4, use_conv_bias=True, hidden_size=parsed.hidden_size)
    return {
        "norms_per_layer": 1,
        "mixer": mamba2(usual, heads, head_dim, groups, state, chunk=MAMBA_CHUNK, bias=False),
        "linear_layers": tuple(block == "linear_attention" for block in blocks),
        "mlp_layers": tuple(block in ("mlp", "moe") for block in blocks),
        "moe_layers": tuple(block == "moe" for block in blocks),
    }


MAMBA_CHUNK = 128
"""Tokens per chunk of Mamba-2's scan by default (Megatron-LM, core/ssm/mamba_mixer.py)."""

STATED = (
    *("layer_norm", "learned_positions", "qkv_bias", "qk_norm_size"),
    *("expert_bias", "shared_gate", "moe_layers"),
)
"""Fields of a shape that sizes without an architecture may state by their own names."""


EXPERT_SIZES = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "num_nextn_predict_layers",
)

EXPERTS_OF_SIZES: Own = {
    "num_experts": size("num_experts"),
    "experts_per_token": lambda parsed: parsed.num_experts_per_tok or 1,
    "moe_intermediate_size": size("moe_intermediate_size"),
    "shared_intermediate_size": lambda parsed: (
        parsed.n_shared_experts * parsed.moe_intermediate_size or parsed.shared_expert_intermediate_size
    ),
    "moe_layers": lambda parsed: moe_layers(
        parsed.num_hidden_layers, parsed.first_k_dense_replace, parsed.decoder_sparse_step or 1
    ),
    "num_nextn_predict_layers": size("num_nextn_predict_layers"),
}
