"""Read a config.json's content as transformers' config class of its architecture would, without transformers.

`config_classes.jsonl` has the classes' fields with their defaults and types, of the transformers version in
its first line; `derived` has what the classes compute. A test compares both with transformers' own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.config.hf_config import fault, shown
from harness.records import Unavailable
from suites.training.layouts.architectures.derived import FAULTS, PROPERTIES, Values, derive
from suites.training.models.config_fault import IGNORED, PYTHON_TYPES

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
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Unavailable(_where(model_type, str(error))) from error


def _values_of(model_type: str, row: Mapping[str, Any], config: Mapping[str, Any]) -> ConfigValues:
    """Return the values in the order in which a class sets them: fields, what it computes, other keys."""
    renames = row.get("renames", {})
    given = {key: value for key, value in config.items() if key not in IGNORED}
    defaults = row["defaults"]
    for key, value in given.items():
        _refuse_key(model_type, row, key, value)
    values: Values = {renames.get(name, name): given.get(name, default) for name, default in defaults.items()}
    others = {key: value for key, value in given.items() if key not in defaults}
    derive(model_type, values, others)
    values.update({renames.get(key, key): value for key, value in others.items()})
    for name, compute in PROPERTIES.get(model_type, {}).items():
        values[name] = compute(values)
    if model_type in FAULTS and (found := FAULTS[model_type](values)):
        raise Unavailable(_where(model_type, found))
    parsed = ConfigValues(model_type, values, renames)
    _refuse_together(parsed, row)
    return parsed


def _refuse_key(model_type: str, row: Mapping[str, Any], key: str, value: Any) -> None:
    """Raise `Unavailable` for a key of another type than its field's, or one that no config can set."""
    if key in row.get("read_only", ()) or key in rows()[""]["read_only"]:
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
        allowed = rows()[""][name]
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
