"""Read a config.json's content as transformers' config class of its architecture would, without transformers.

`config_classes.jsonl` has the classes' fields with their defaults and types, of the transformers version in
its first line. `derive` has what the classes compute from a config's values, of that which shapes depend on:
each entry is a part of `__post_init__` in models/<model_type>/configuration_<model_type>.py of that version,
as functions of the values of the class's fields. A test compares both with transformers' own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.config.hf_config import fault, shown
from harness.records import Unavailable
from suites.training.models.config_fault import IGNORED, PYTHON_TYPES

Values = dict[str, Any]
Compute = Callable[[Values], Any]
Windowed = Callable[[Values, int], Any]
"""Whether a layer, from 0, has a window."""


def derive(model_type: str, values: Values, others: Values) -> None:
    """Change a config's values as its class does; `others`: the config's other keys, which it takes after."""
    if model_type in OLD_NAME_OF_HIDDEN_SIZE and (n_embed := others.pop("n_embed", None)) is not None:
        values["hidden_size"] = n_embed
    if model_type in OTHERS:
        OTHERS[model_type](values, others)
    for name, compute in SET.get(model_type, {}).items():
        values[name] = compute(values)
    for name, compute in FILLED.get(model_type, {}).items():
        if values[name] is None:
            values[name] = compute(values)
    windowed = WINDOWED.get(model_type)
    if model_type in PATTERNS:
        pattern = others.get("sliding_window_pattern", PATTERNS[model_type])
        if model_type == "cohere2" and values.get("layer_types") is None:
            others.pop("sliding_window_pattern", None)
        windowed = lambda _, layer: (layer + 1) % pattern  # noqa: E731
    if windowed and values.get("layer_types") is None:
        values["layer_types"] = [
            "sliding_attention" if windowed(values, layer) else "full_attention"
            for layer in range(values["num_hidden_layers"])
        ]


OLD_NAME_OF_HIDDEN_SIZE = ("bloom", "falcon")

NEMOTRON_BLOCKS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}

NEMOTRON_NAMES = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "expand": "mamba_expand",
    "use_conv_bias": "mamba_conv_bias",
    "chunk_size": "mamba_chunk_size",
}
"""Other names of Nemotron-H's sizes."""


def full_every(values: Values, others: Values) -> None:
    """List Qwen's kinds of layers by the interval of those with attention."""
    interval = others.pop("full_attention_interval", 4) if values["layer_types"] is None else 0
    if interval:
        full = [not (layer + 1) % interval for layer in range(values["num_hidden_layers"])]
        values["layer_types"] = ["full_attention" if each else "linear_attention" for each in full]


def nemotron_blocks(values: Values, others: Values) -> None:
    """List Nemotron-H's layers from their pattern; their number follows."""
    for name, other in NEMOTRON_NAMES.items():
        values[name] = others.pop(other, values[name])
    pattern = others.pop("hybrid_override_pattern", None)
    if values["layers_block_type"] is None:
        usual = ["linear_attention", "moe", "full_attention", "mlp"]
        blocks = usual if pattern is None else blocks_of_pattern(pattern)
        values["layers_block_type"] = blocks
    others["num_hidden_layers"] = len(values["layers_block_type"])


def names_of_lfm2(values: Values, others: Values) -> None:
    """Take LFM2's other names of the MLP's width and of tied embeddings."""
    values["tie_word_embeddings"] = others.pop("tie_embedding", values["tie_word_embeddings"])
    if "block_ff_dim" in others and "full_attn_idxs" in values:
        values["intermediate_size"] = others.pop("block_ff_dim")


def kimi_section(values: Values, others: Values) -> None:
    """Take what Kimi Linear's section of linear attention states, of layers counted from 1."""
    section = others.get("linear_attn_config") or {}
    names = {"linear_head_dim": "head_dim", "linear_num_heads": "num_heads"}
    for name, key in {**names, "linear_conv_kernel_dim": "short_conv_kernel_size"}.items():
        values[name] = section.get(key, values[name])
    full = section.get("full_attn_layers")
    if values["layer_types"] is None and full is not None and "kda_layers" in section:
        layers = range(1, values["num_hidden_layers"] + 1)
        values["layer_types"] = ["full_attention" if one in full else "linear_attention" for one in layers]
    if values["mlp_layer_types"] is None and "first_k_dense_replace" in others:
        first, layers = others["first_k_dense_replace"], range(values["num_hidden_layers"])
        values["mlp_layer_types"] = ["dense" if layer < first else "sparse" for layer in layers]


def blocks_of_pattern(pattern: object) -> list[str]:
    """Return the kinds of a hybrid's layers by their letters; raises ValueError for what is no such text."""
    if not isinstance(pattern, str) or not pattern or not set(pattern) <= NEMOTRON_BLOCKS.keys():
        raise ValueError(f"expected text of {', '.join(NEMOTRON_BLOCKS)}, a letter per layer")
    return [NEMOTRON_BLOCKS[each] for each in pattern]


TAKEN = ("hybrid_override_pattern", "mtp_hybrid_override_pattern")
"""Names of properties that a class takes nevertheless."""

OTHERS: Mapping[str, Callable[[Values, Values], None]] = {
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), full_every),
    **dict.fromkeys(("lfm2", "lfm2_moe"), names_of_lfm2),
    "kimi_linear": kimi_section,
    "nemotron_h": nemotron_blocks,
}
"""What a class takes from keys that are no fields of it, by model_type."""


def head_of_hidden_size(values: Values) -> Any:
    """Return a head's part of the hidden size."""
    return values["hidden_size"] // values["num_attention_heads"]


def switched_window(values: Values) -> Any:
    """Return the window where the config switches it on."""
    return values["sliding_window"] if values["use_sliding_window"] else None


def halved_in_both_directions(values: Values) -> Any:
    """Return the window, half of it where attention sees both directions."""
    both = values["use_bidirectional_attention"]
    return values["sliding_window"] // 2 + 1 if both else values["sliding_window"]


def pattern_of_window(values: Values) -> Any:
    """Return EXAONE's pattern, none without a window."""
    return 0 if values["sliding_window"] is None else values["sliding_window_pattern"]


SET: Mapping[str, Mapping[str, Compute]] = {
    "cohere2": {"head_dim": head_of_hidden_size},
    "exaone4": {"sliding_window_pattern": pattern_of_window},
    "exaone_moe": {"sliding_window_pattern": pattern_of_window},
    "gemma3_text": {"sliding_window": halved_in_both_directions},
    "qwen2": {"sliding_window": switched_window},
    "qwen2_moe": {"sliding_window": lambda values: switched_window(values) or 0},
    "qwen3": {"sliding_window": switched_window},
    "qwen3_moe": {"sliding_window": switched_window},
}
"""What a class computes whatever the config states, by model_type and name."""


def rotated_layers(values: Values) -> list[bool]:
    """Return which layers have rotary embedding, by an interval."""
    interval = values["no_rope_layer_interval"]
    return [bool((layer + 1) % interval) for layer in range(values["num_hidden_layers"])]


def chunks_of_rotated(values: Values) -> list[str]:
    """Return Llama 4's kinds of attention: layers with rotary embedding see chunks."""
    rotated = values["no_rope_layers"] or rotated_layers(values)
    return ["chunked_attention" if one else "full_attention" for one in rotated]


def experts_by_step(values: Values) -> list[int]:
    """Return Llama 4's layers with experts."""
    step = values["interleave_moe_layer_step"]
    return list(range(step - 1, values["num_hidden_layers"], step))


def dense_first(values: Values) -> list[str]:
    """Return each layer's MLP: experts after the first dense ones."""
    first = values["first_k_dense_replace"]
    return ["dense" if layer < first else "sparse" for layer in range(values["num_hidden_layers"])]


EVERY_HEAD: Mapping[str, Compute] = {"num_key_value_heads": lambda values: values["num_attention_heads"]}


def linear_but_every(interval: int, last: bool = False) -> Compute:
    """Return what lists kinds of layers of which every n-th has attention; `last`: the last if none has."""

    def listed(values: Values) -> list[str]:
        layers = values["num_hidden_layers"]
        full = [(layer + 1) % interval == 0 for layer in range(layers)]
        full[-1] = full[-1] or (last and not any(full))
        return ["full_attention" if each else "linear_attention" for each in full]

    return listed


def listed_convolutions(values: Values) -> list[str]:
    """Return LFM2's kinds of layers."""
    layers, full = values["num_hidden_layers"], values["full_attn_idxs"]
    return ["full_attention" if full is None or one in full else "conv" for one in range(layers)]


def kimi_layers(values: Values) -> list[str]:
    """Return Kimi Linear's kinds of layers: every fourth has attention, counted from the fifth."""
    layers = range(values["num_hidden_layers"])
    return ["full_attention" if one and one % 4 == 0 else "linear_attention" for one in layers]


HYBRIDS_FILLED: Mapping[str, Mapping[str, Compute]] = {
    "bamba": EVERY_HEAD,
    "granitemoehybrid": {
        **EVERY_HEAD,
        "layer_types": lambda values: ["linear_attention"] * values["num_hidden_layers"],
    },
    "jamba": EVERY_HEAD,
    "kimi_linear": {
        **EVERY_HEAD,
        "layer_types": kimi_layers,
        "mlp_layer_types": lambda values: [
            "dense" if layer < 1 else "sparse" for layer in range(values["num_hidden_layers"])
        ],
    },
    "lfm2": {"layer_types": listed_convolutions},
    "minimax": {
        **EVERY_HEAD,
        "layer_types": lambda values: [
            "linear_attention" if layer % 2 else "full_attention"
            for layer in range(values["num_hidden_layers"])
        ],
    },
    "nemotron_h": EVERY_HEAD,
    "olmo_hybrid": {
        **EVERY_HEAD,
        "layer_types": linear_but_every(4, last=True),
        "linear_num_key_heads": lambda values: values["num_attention_heads"],
        "linear_num_value_heads": lambda values: values["num_attention_heads"],
        "linear_key_head_dim": lambda values: int(
            0.75 * values["hidden_size"] / values["linear_num_key_heads"]
        ),
        "linear_value_head_dim": lambda values: 2 * values["linear_key_head_dim"],
    },
}

FILLED: Mapping[str, Mapping[str, Compute]] = {
    **dict.fromkeys(("cohere", "cohere2", "dots1", "flex_olmo", "olmo2", "olmo3", "olmoe"), EVERY_HEAD),
    "exaone_moe": {"mlp_layer_types": dense_first},
    "falcon": {
        "num_kv_heads": lambda values: values["num_attention_heads"],
        "ffn_hidden_size": lambda values: values["hidden_size"] * 4,
    },
    "glm4_moe_lite": {
        "mlp_layer_types": lambda values: ["dense"] + ["sparse"] * (values["num_hidden_layers"] - 1)
    },
    "llama4_text": {"layer_types": chunks_of_rotated, "moe_layers": experts_by_step},
    "mellum": {"mlp_layer_types": lambda values: ["sparse"] * values["num_hidden_layers"]},
    "minicpm3": {"v_head_dim": head_of_hidden_size},
    "opt": {"word_embed_proj_dim": lambda values: values["hidden_size"]},
    **HYBRIDS_FILLED,
}
"""What a class computes where the config states nothing, by model_type and name."""


def after_full_layers(values: Values, layer: int) -> Any:
    """Return whether `max_window_layers` leaves a layer."""
    return values["sliding_window"] is not None and layer >= values["max_window_layers"]


def every_second_up_to(values: Values, layer: int) -> Any:
    """Return whether a layer is the first of two, up to `max_window_layers`."""
    return (layer + 1) % 2 and layer < values["max_window_layers"] and values["use_sliding_window"]


def without_rotary_embedding(values: Values, layer: int) -> Any:
    """Return whether a layer has no rotary embedding, where the config switches the window on."""
    rotated = rotated_layers(values) if values["no_rope_layers"] is None else values["no_rope_layers"]
    return not rotated[layer] and values["use_sliding_window"] and values["sliding_window"] is not None


WINDOWED: Mapping[str, Windowed] = {
    **dict.fromkeys(("cwm", "granite_swa", "granitemoe_swa"), lambda values, layer: layer % 4),
    **dict.fromkeys(("dots1", "qwen2", "qwen3"), after_full_layers),
    **dict.fromkeys(
        ("exaone4", "exaone_moe"), lambda values, layer: (layer + 1) % values["sliding_window_pattern"]
    ),
    **dict.fromkeys(("gemma2", "gpt_oss", "vaultgemma"), lambda values, layer: (layer + 1) % 2),
    "mellum": lambda values, layer: False,
    "ministral": lambda values, layer: values["sliding_window"] is not None,
    "olmo3": lambda values, layer: (layer + 1) % 4,
    "qwen2_moe": every_second_up_to,
    "smollm3": without_rotary_embedding,
}
"""Which layers have a window where the config states no kinds of attention, by model_type."""

PATTERNS: Mapping[str, int] = {"cohere2": 4, "gemma3_text": 6}
"""Of so many layers all but the last have a window, unless the key `sliding_window_pattern` has another."""


def jamba_layers(values: Values) -> list[str]:
    """Return Jamba's kinds of layers, of which those at an offset in each period have attention."""
    period, offset = values["attn_layer_period"], values["attn_layer_offset"]
    layers = range(values["num_hidden_layers"])
    return ["full_attention" if one % period == offset else "linear_attention" for one in layers]


def bamba_layers(values: Values) -> list[str]:
    """Return Bamba's kinds of layers, of which the listed ones have attention."""
    full, layers = values["attn_layer_indices"] or (), range(values["num_hidden_layers"])
    return ["full_attention" if one in full else "linear_attention" for one in layers]


PROPERTIES: Mapping[str, Mapping[str, Compute]] = {
    "bamba": {"layers_block_type": bamba_layers},
    "falcon": {"head_dim": head_of_hidden_size},
    "jamba": {"layer_types": jamba_layers},
}
"""What a class computes whenever it is asked, by model_type and name."""


def attention_types_fault(values: Values) -> str:
    """Return what is wrong with kinds of attention that are not one per layer."""
    types = values["attention_types"] or [[["global", "local"], 12]]
    listed, layers = sum(len(kinds) * count for kinds, count in types), values["num_layers"]
    return f"attention_types lists {listed} layers; num_layers is {layers}" if listed != layers else ""


def offsets_fault(values: Values) -> str:
    """Return which of Jamba's offsets is not within its period."""
    for kind in ("attn", "expert"):
        period, offset = values[f"{kind}_layer_period"], values[f"{kind}_layer_offset"]
        if offset >= period:
            return f"{kind}_layer_offset is {offset}; it must be below {kind}_layer_period, {period}"
    return ""


def attention_list_fault(values: Values) -> str:
    """Return where MiniMax's older list of attention is not that of `layer_types`, which its class takes."""
    if (kinds := values.get("attn_type_list")) is None:
        return ""
    own = [int(kind == "full_attention") for kind in values["layer_types"]]
    return "" if kinds == own else "attn_type_list is not as layer_types are; state the layers as layer_types"


def groups_fault(values: Values) -> str:
    """Return which heads of a mixer are no multiple of those, or of the groups, that they share."""
    for heads, shared in SHARED:
        count, each = values.get(heads), values.get(shared)
        if count and each and count % each:
            return f"{heads} is {count}; it must be a multiple of {shared}, {each}"
    return ""


SHARED = (
    ("mamba_num_heads", "n_groups"),
    ("mamba_num_heads", "mamba_n_groups"),
    ("mamba_n_heads", "mamba_n_groups"),
    ("linear_num_value_heads", "linear_num_key_heads"),
)
"""Heads, and what each so many of them share: arXiv 2405.21060, 2412.06464."""

FAULTS: Mapping[str, Callable[[Values], str]] = {
    "cwm": lambda values: "" if values["sliding_window"] else "sliding_window must be a whole number above 0",
    "gpt_neo": attention_types_fault,
    "jamba": offsets_fault,
    "minimax": attention_list_fault,
    "internlm3": lambda values: (
        "attention_bias and mlp_bias differ; they must be the same"
        if values["attention_bias"] != values["mlp_bias"]
        else ""
    ),
    "iquestcoder": lambda values: (
        "use_sliding_window and clip_qkv must be left out"
        if values.get("use_sliding_window") or values.get("clip_qkv") is not None
        else ""
    ),
    "mellum": lambda values: (
        "num_mtp_layers must be at most 1" if (values["num_nextn_predict_layers"] or 0) > 1 else ""
    ),
}
"""What a class refuses (`validate_architecture`), by model_type; "": nothing."""


LEAST: Mapping[str, int] = {
    **dict.fromkeys(
        (
            *("hidden_size", "num_attention_heads", "full_attention_interval"),
            *("attn_layer_period", "expert_layer_period", "no_rope_layer_interval"),
            *("interleave_moe_layer_step", "moe_layer_interval", "block_size", "conv_L_cache"),
            *("mamba_num_heads", "mamba_n_heads", "mamba_head_dim", "n_groups", "mamba_n_groups"),
            *("ssm_state_size", "mamba_d_state", "conv_kernel", "mamba_d_conv", "expand", "mamba_expand"),
            *("chunk_size", "mamba_chunk_size", "linear_num_key_heads", "linear_num_value_heads"),
            *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
            *("linear_num_heads", "linear_head_dim", "num_heads", "head_dim", "short_conv_kernel_size"),
        ),
        1,
    ),
    **dict.fromkeys(("attn_layer_offset", "expert_layer_offset", "first_k_dense_replace"), 0),
}
"""The least of numbers by which shapes divide, or of which layers are made."""

PATTERNS_OF_LAYERS = ("hybrid_override_pattern",)
LISTS_OF_LAYERS = ("attn_layer_indices", "attn_type_list", "full_attn_idxs", "full_attn_layers", "kda_layers")
NULL = (*LISTS_OF_LAYERS, "head_dim", "hybrid_override_pattern", "linear_attn_config")
"""Keys that may be null, as if they were left out; so may those that a class computes (`FILLED`)."""

TAKEN_BESIDES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), ("full_attention_interval",)),
    "kimi_linear": ("first_k_dense_replace", "linear_attn_config"),
    "minimax": ("attn_type_list",),
    "nemotron_h": ("hybrid_override_pattern", *NEMOTRON_NAMES.values()),
}
"""Keys that are no fields of a class and that its layers follow from, by model_type."""

LEGACY_KINDS = {"attention": "full_attention", "mamba": "linear_attention"}
"""Older names of kinds of layers: transformers/configuration_utils.py, _LEGACY_LAYER_TYPE_REMAP."""

TABLE = Path(__file__).with_name("config_classes.jsonl")


class ConfigValues:
    """A config's values by the names that its class has for them, as transformers' own config object."""

    def __init__(self, model_type: str, values: Values, renames: Mapping[str, str]):
        self.model_type = model_type
        self._values = values
        self._renames = renames

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[self._renames.get(name, name)]
        except KeyError:
            raise AttributeError(f"the config has no {name}") from None


def config_values(config: Mapping[str, Any]) -> ConfigValues | None:
    """Return a config's values with the defaults of its class; None for a class that the table lacks.

    Raises `Unavailable` with one line that names the key at fault.
    """
    model_type = str(config.get("model_type"))
    row = rows().get(model_type)
    text = config.get("text_config")
    if row is None or "text" in row:
        if isinstance(text, Mapping):
            default = row["text"] if row else None
            return config_values({**text, "model_type": text.get("model_type") or default})
        if row is None:
            return None
        own_keys = config if row["another_name"] else row["values"]
        return config_values({**own_keys, "model_type": row["text"]})
    try:
        return _values_of(model_type, row, config)
    except ValueError as error:
        raise Unavailable(_where(model_type, str(error))) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise Unavailable(_where(model_type, "its values together give no layers")) from error


def _values_of(model_type: str, row: Mapping[str, Any], config: Mapping[str, Any]) -> ConfigValues:
    """Return the values in the order in which a class sets them: fields, what it computes, other keys."""
    renames = row.get("renames", {})
    given = {key: value for key, value in config.items() if key not in IGNORED}
    defaults = row["defaults"]
    for key, value in given.items():
        _refuse_key(model_type, row, key, value)
        if key in defaults or key in TAKEN_BESIDES.get(model_type, ()):
            _refuse_bounds(model_type, key, value)
    values: Values = {renames.get(name, name): given.get(name, default) for name, default in defaults.items()}
    others = {key: value for key, value in given.items() if key not in defaults}
    derive(model_type, values, others)
    values.update({renames.get(key, key): value for key, value in others.items()})
    for name in ("layer_types", "layers_block_type"):
        if isinstance(kinds := values.get(name), list):
            values[name] = [LEGACY_KINDS.get(kind, kind) for kind in kinds]
    for name, compute in PROPERTIES.get(model_type, {}).items():
        values[name] = compute(values)
    if found := FAULTS.get(model_type, groups_fault)(values):
        raise Unavailable(_where(model_type, found))
    parsed = ConfigValues(model_type, values, renames)
    _refuse_together(parsed, row)
    return parsed


def _refuse_key(model_type: str, row: Mapping[str, Any], key: str, value: Any) -> None:
    """Raise `Unavailable` for a key of another type than its field's, or one that no config can set."""
    if key not in TAKEN and (key in row.get("read_only", ()) or key in rows()[""]["read_only"]):
        raise Unavailable(_where(model_type, f"{key} is {shown(value)}; it must be left out"))
    if key == "per_layer_config" and value is not None:
        raise Unavailable(
            _where(model_type, f"{key} is {shown(value)}; layouts are answered for layers alike")
        )
    renames = row.get("renames", {})
    of_fields = {renames.get(name, name): kinds for name, kinds in row["kinds"].items()}
    kinds = of_fields.get(renames.get(key, key), "")
    if kinds and not any(_is_of(kind, value) for kind in kinds.split("|")):
        raise Unavailable(_where(model_type, fault(key, value, _expected(key, value, kinds))))


def _refuse_bounds(model_type: str, key: str, value: Any) -> None:
    """Raise `Unavailable` for a number of layers or of a mixer's parts that no model can have."""
    if value is None and (key in NULL or key in FILLED.get(model_type, {})):
        return
    where = f"{key} is {shown(value)}"
    if key in PATTERNS_OF_LAYERS:
        try:
            blocks_of_pattern(value)
        except ValueError as error:
            raise Unavailable(_where(model_type, f"{where}; {error}")) from None
    elif key == "linear_attn_config":
        if not isinstance(value, Mapping):
            raise Unavailable(_where(model_type, f"{where}; it must be an object"))
        for name, each in value.items():
            _refuse_bounds(model_type, name, each)
    elif key in LISTS_OF_LAYERS:
        if not isinstance(value, list) or not all(_is_of("int", one) for one in value):
            raise Unavailable(_where(model_type, f"{where}; it must be a list of whole numbers"))
    elif key in LEAST and not (_is_of("int", value) and value >= LEAST[key]):
        raise Unavailable(_where(model_type, f"{where}; it must be a whole number of at least {LEAST[key]}"))


def _is_of(kind: str, value: Any) -> bool:
    """Return whether a value of JSON is of a kind, as `int`, `null` or `list:int,str`."""
    if kind.startswith("list:"):
        items = kind.removeprefix("list:").split(",")
        return isinstance(value, list) and all(any(_is_of(one, item) for one in items) for item in value)
    return kind == ("null" if value is None else type(value).__name__)


def _expected(key: str, value: Any, kinds: str) -> str:
    """Return in words what a key must be."""
    if key in ("rope_scaling", "rope_parameters"):
        return "an object with rope_type and its parameters, or null"
    if kinds == "float" and _is_of("int", value):
        return f"a number with a decimal point, as {value}.0"
    named = [words for kind, words in PYTHON_TYPES.items() if kind in kinds.split("|")]
    named += ["a list"] if "list" in kinds else []
    return " or ".join(named) or "of the type that its architecture has"


def _refuse_together(parsed: ConfigValues, row: Mapping[str, Any]) -> None:
    """Raise ValueError where heads do not divide the hidden size, or lists do not have an entry per layer."""
    hidden, heads = parsed.hidden_size, parsed.num_attention_heads
    if row.get("heads_divide") and hidden % heads:
        raise ValueError(
            f"hidden_size is {hidden} and num_attention_heads is {heads}, with which it fails: The hidden "
            f"size ({hidden}) is not a multiple of the number of attention heads ({heads})."
        )
    layers = parsed.num_hidden_layers
    for name in ("layer_types", "mlp_layer_types"):
        listed = getattr(parsed, name, None)
        if listed is None:
            break
        allowed = (
            *rows()[""][name],
            *(NEMOTRON_BLOCKS.values() if parsed.model_type == "nemotron_h" else ()),
        )
        if unknown := [kind for kind in listed if kind not in allowed]:
            raise ValueError(f"{name} has {shown(unknown[0])}; it must have one of {', '.join(allowed)}")
        if layers is not None and layers != len(listed):
            raise ValueError(f"{name} has {len(listed)} entries; it must have one per layer, {layers}")
    if not isinstance(layers, int) or not layers:
        raise Unavailable(f"model_type {parsed.model_type!r} does not state its number of layers")


def _where(model_type: str, why: str) -> str:
    return f"config.json of model_type {model_type!r}: {why}"


@cache
def rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the table by model_type; "": what all classes have."""
    with TABLE.open(encoding="utf-8") as lines:
        return {row["model_type"]: row for row in map(json.loads, lines)}
