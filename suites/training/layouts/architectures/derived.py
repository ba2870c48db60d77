"""What transformers' config classes compute from a config's values, of that which shapes depend on.

Each function is a part of `__post_init__` in models/<model_type>/configuration_<model_type>.py, of the
version that `config_classes.jsonl` names. It changes the values of the class's fields; `others` are the
config's other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Values = dict[str, Any]
Derive = Callable[[Values, Values], None]


def key_value_heads(values: Values, _: Values) -> None:
    """Give every head keys and values of its own where the config states no number."""
    if values["num_key_value_heads"] is None:
        values["num_key_value_heads"] = values["num_attention_heads"]


def embedded(values: Values, others: Values) -> None:
    """Read the hidden size by its old name."""
    n_embed = others.pop("n_embed", None)
    values["hidden_size"] = values["hidden_size"] if n_embed is None else n_embed


def falcon(values: Values, _: Values) -> None:
    """Fill in key-value heads, and an MLP of four hidden sizes."""
    if values["num_kv_heads"] is None:
        values["num_kv_heads"] = values["num_attention_heads"]
    if values["ffn_hidden_size"] is None:
        values["ffn_hidden_size"] = values["hidden_size"] * 4


def opt(values: Values, _: Values) -> None:
    """Fill in the embedding's width."""
    if values["word_embed_proj_dim"] is None:
        values["word_embed_proj_dim"] = values["hidden_size"]


def latent_values(values: Values, _: Values) -> None:
    """Fill in the size of a head's values."""
    if values["v_head_dim"] is None:
        values["v_head_dim"] = values["hidden_size"] // values["num_attention_heads"]


def head_of_hidden_size(values: Values, _: Values) -> None:
    """Set a head's size from the hidden size, whatever the config states."""
    values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]


def switched_window(values: Values, _: Values) -> None:
    """Keep a window only where the config switches it on."""
    values["sliding_window"] = values["sliding_window"] if values["use_sliding_window"] else None


def both_directions(values: Values, _: Values) -> None:
    """Halve the window where attention sees both directions."""
    if values["use_bidirectional_attention"]:
        values["sliding_window"] = values["sliding_window"] // 2 + 1


def _kinds(values: Values, windowed: Callable[[int], Any], kind: str = "sliding_attention") -> None:
    """Set each layer's kind of attention where the config states none."""
    if values.get("layer_types") is None:
        layers = range(values["num_hidden_layers"])
        values["layer_types"] = [kind if windowed(layer) else "full_attention" for layer in layers]


def every_second(values: Values, _: Values) -> None:
    """Give the first of two layers a window."""
    _kinds(values, lambda layer: (layer + 1) % 2)


def all_but_every_fourth(values: Values, _: Values) -> None:
    """Give three of four layers a window, the first three among them."""
    _kinds(values, lambda layer: (layer + 1) % 4)


def all_but_first_of_four(values: Values, _: Values) -> None:
    """Give three of four layers a window, the first not among them."""
    _kinds(values, lambda layer: layer % 4)


def by_pattern(default: int, used_up: bool) -> Derive:
    """Return what gives all layers a window whose number the config's pattern does not divide."""

    def derive(values: Values, others: Values) -> None:
        pattern = others.get("sliding_window_pattern", default)
        if used_up and values.get("layer_types") is None:
            others.pop("sliding_window_pattern", None)
        _kinds(values, lambda layer: (layer + 1) % pattern)

    return derive


def exaone(values: Values, _: Values) -> None:
    """Give all layers a window whose number the pattern does not divide."""
    if values["sliding_window"] is None:
        values["sliding_window_pattern"] = 0
    _kinds(values, lambda layer: (layer + 1) % values["sliding_window_pattern"])


def after_full_layers(values: Values, _: Values) -> None:
    """Give layers a window from the first that `max_window_layers` leaves."""
    there = values["sliding_window"] is not None
    _kinds(values, lambda layer: there and layer >= values["max_window_layers"])


def qwen2_moe(values: Values, _: Values) -> None:
    """Give every second layer a window, up to `max_window_layers`."""
    used = values["use_sliding_window"]
    values["sliding_window"] = values["sliding_window"] if used else 0
    _kinds(values, lambda layer: (layer + 1) % 2 and layer < values["max_window_layers"] and used)


def ministral(values: Values, _: Values) -> None:
    """Give every layer the window."""
    _kinds(values, lambda layer: values["sliding_window"] is not None)


def smollm3(values: Values, _: Values) -> None:
    """Give layers without rotary embedding a window where the config switches it on."""
    rotated = _rotated(values) if values["no_rope_layers"] is None else values["no_rope_layers"]
    used = values["use_sliding_window"] and values["sliding_window"] is not None
    _kinds(values, lambda layer: not rotated[layer] and used)


def llama4(values: Values, _: Values) -> None:
    """Give layers with rotary embedding chunks, and layers by a step experts."""
    rotated = values["no_rope_layers"] or _rotated(values)
    if values["layer_types"] is None:
        values["layer_types"] = ["chunked_attention" if one else "full_attention" for one in rotated]
    if values["moe_layers"] is None:
        step = values["interleave_moe_layer_step"]
        values["moe_layers"] = list(range(step - 1, values["num_hidden_layers"], step))


def _rotated(values: Values) -> list[bool]:
    interval = values["no_rope_layer_interval"]
    return [bool((layer + 1) % interval) for layer in range(values["num_hidden_layers"])]


def mellum(values: Values, _: Values) -> None:
    """Give every layer full attention and experts where the config states nothing."""
    _kinds(values, lambda layer: False)
    if values["mlp_layer_types"] is None:
        values["mlp_layer_types"] = ["sparse"] * values["num_hidden_layers"]


def dense_first(values: Values, _: Values) -> None:
    """Give layers experts after the first dense ones."""
    if values["mlp_layer_types"] is None:
        first = values["first_k_dense_replace"]
        layers = range(values["num_hidden_layers"])
        values["mlp_layer_types"] = ["dense" if layer < first else "sparse" for layer in layers]


def dense_first_one(values: Values, _: Values) -> None:
    """Give all layers experts but the first."""
    if values["mlp_layer_types"] is None:
        values["mlp_layer_types"] = ["dense"] + ["sparse"] * (values["num_hidden_layers"] - 1)


BEFORE: Mapping[str, tuple[Derive, ...]] = {
    "bloom": (embedded,),
    "cohere": (key_value_heads,),
    "cohere2": (key_value_heads, head_of_hidden_size, by_pattern(4, used_up=True)),
    "cwm": (all_but_first_of_four,),
    "dots1": (key_value_heads, after_full_layers),
    "exaone4": (exaone,),
    "exaone_moe": (dense_first, exaone),
    "falcon": (embedded, falcon),
    "flex_olmo": (key_value_heads,),
    "gemma2": (every_second,),
    "gemma3_text": (both_directions, by_pattern(6, used_up=False)),
    "glm4_moe_lite": (dense_first_one,),
    "gpt_oss": (every_second,),
    "granite_swa": (all_but_first_of_four,),
    "granitemoe_swa": (all_but_first_of_four,),
    "llama4_text": (llama4,),
    "mellum": (mellum,),
    "minicpm3": (latent_values,),
    "ministral": (ministral,),
    "olmo2": (key_value_heads,),
    "olmo3": (key_value_heads, all_but_every_fourth),
    "olmoe": (key_value_heads,),
    "opt": (opt,),
    "qwen2": (switched_window, after_full_layers),
    "qwen2_moe": (qwen2_moe,),
    "qwen3": (switched_window, after_full_layers),
    "qwen3_moe": (switched_window,),
    "smollm3": (smollm3,),
    "vaultgemma": (every_second,),
}
"""What a class computes before it takes a config's other keys, by model_type."""

PROPERTIES: Mapping[str, Mapping[str, Callable[[Values], Any]]] = {
    "falcon": {"head_dim": lambda values: values["hidden_size"] // values["num_attention_heads"]},
}
"""What a class computes whenever it is asked, by model_type and name."""


def attention_types_fault(values: Values) -> str:
    """Return what is wrong with kinds of attention that are not one per layer."""
    types = values["attention_types"] or [[["global", "local"], 12]]
    listed, layers = sum(len(kinds) * count for kinds, count in types), values["num_layers"]
    return f"attention_types lists {listed} layers; num_layers is {layers}" if listed != layers else ""


def biases_fault(values: Values) -> str:
    """Return what is wrong with biases of attention alone, or of MLPs alone."""
    same = values["attention_bias"] == values["mlp_bias"]
    return "" if same else "attention_bias and mlp_bias differ; they must be the same"


def iquestcoder_fault(values: Values) -> str:
    """Return what is wrong with keys that the class knows and refuses."""
    refused = values.get("use_sliding_window") or values.get("clip_qkv") is not None
    return "use_sliding_window and clip_qkv must be left out" if refused else ""


def mellum_fault(values: Values) -> str:
    """Return what is wrong with several layers of multi-token prediction."""
    return "num_mtp_layers must be at most 1" if (values["num_nextn_predict_layers"] or 0) > 1 else ""


def window_fault(values: Values) -> str:
    """Return what is wrong with a window of nothing."""
    return "" if values["sliding_window"] else "sliding_window must be a whole number above 0"


FAULTS: Mapping[str, Callable[[Values], str]] = {
    "cwm": window_fault,
    "gpt_neo": attention_types_fault,
    "internlm3": biases_fault,
    "iquestcoder": iquestcoder_fault,
    "mellum": mellum_fault,
}
"""What a class refuses (`validate_architecture`), by model_type; "": nothing."""
