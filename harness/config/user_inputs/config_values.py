"""Refuse values that no config.json can have, whatever its architecture, before anything is built.

What depends on the architecture is found by the worker: `suites.training.models.config_fault`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

OBJECTS = ("text_config", "quantization_config", "rope_scaling", "rope_parameters")
TEXTS = ("hidden_act", "activation_function", "hidden_activation", "torch_dtype", "dtype", "model_type")
LISTS = ("layer_types", "architectures")
FLAGS = ("tie_word_embeddings", "use_cache", "is_decoder", "is_encoder_decoder")

KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(OBJECTS, ((dict,), "an object")),
    **dict.fromkeys(TEXTS, ((str,), "text")),
    **dict.fromkeys(LISTS, ((list,), "a list")),
    **dict.fromkeys(FLAGS, ((bool,), "true or false")),
}
"""What a key has in every architecture, where it is not null."""

COUNTED = re.compile(r"(num_|n_|moe_).*(layers?|experts?|blocks?)|n_layers?|.*_layers|num_.*heads|n_heads?")
"""Keys that count modules, each of which is built."""

NEVER_NEGATIVE = re.compile(r"(num|n)_.*|.*_(size|dim|rank|heads|layers|width)")
SHARE = re.compile(r"drop(out)?$|dropout_(prob|rate|p)$|pdrop$|^(partial_rotary_factor|rotary_pct|rope_pct)$")
"""Keys of probabilities, and of the share of a head's dimensions that is rotated."""

UNLIMITED = re.compile(r"window|chunk|context")
"""Parts of keys whose negative values mean that there is no limit."""

MOST_LAYERS = 1024
MOST_COUNTED = 16_384
"""Modules of one kind at most. Ten times as many as any published model has are too many to be built."""

LARGEST_NUMBER = 2**63 - 1
"""Torch's sizes are int64."""

SHOWN = 60
"""Characters of a value that an error message shows."""


def parse_object(text: str) -> Any:
    """Return the JSON value of `text`; raises ValueError where a key of an object is given twice."""
    return json.loads(text, object_pairs_hook=_without_doubles)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{_word(key)} is given twice")
        found[key] = value
    return found


def shown(value: Any) -> str:
    """Return a value as JSON, shortened in the middle."""
    try:
        text = json.dumps(value)
    except ValueError:  # a number of more digits than Python prints
        text = "a number of thousands of digits"
    half = SHOWN // 2
    return text if len(text) <= SHOWN else f"{text[: half - 1]} … {text[-half + 2 :]}"


def fault(key: str, value: Any, expected: str) -> str:
    """Return in a line what a key has and what it must have."""
    return f"{_word(key)} is {shown(value)}; it must be {expected}"


def refuse_kinds(file: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError where a key that every architecture has is of another type."""
    _refuse(file, config, _expected_kind)


def refuse_values(file: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError where a number is none, or is too large or too small for any architecture."""
    _refuse(file, config, _expected_number)


def _refuse(file: Path, config: Mapping[str, Any], expected_of: Callable[[str, Any], str]) -> None:
    for path, key, value in _entries(config):
        if expected := expected_of(key, value):
            raise ValueError(f"{file}: {fault(path, value, expected)}")


def _entries(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield the path, the key and the value of every entry, at any depth; those of lists have their key."""
    for key, value in config.items():
        path = f"{above}{key}"
        yield path, key, value
        if isinstance(value, dict):
            yield from _entries(value, f"{path}.")
        elif isinstance(value, list):
            for one in _items(value):
                yield (path, "", one) if not isinstance(one, dict) else (path, "", None)
                if isinstance(one, dict):
                    yield from _entries(one, f"{path}.")


def _items(listed: list[Any]) -> Iterator[Any]:
    for one in listed:
        if isinstance(one, list):
            yield from _items(one)
        else:
            yield one


def _expected_kind(key: str, value: Any) -> str:
    """Return of what type a key must be; "" where nothing speaks against its value."""
    if key not in KINDS or value is None:
        return ""
    kinds, words = KINDS[key]
    return "" if isinstance(value, kinds) else words


def _expected_number(key: str, value: Any) -> str:
    """Return what a number must be; "" where nothing speaks against it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if math.isnan(value) or (key and math.isinf(value)):
        return "a finite number"
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        return f"at most {LARGEST_NUMBER} in size"
    if value < 0 and NEVER_NEGATIVE.fullmatch(key) and not UNLIMITED.search(key):
        return "a number of at least 0"
    if SHARE.search(key) and not 0 <= value <= 1:
        return "a number from 0 to 1"
    if COUNTED.fullmatch(key) and value > (most := MOST_LAYERS if "layer" in key else MOST_COUNTED):
        return f"at most {most:,}"
    return ""


def _word(key: str) -> str:
    """Return a key for display: as it is where it is a name."""
    return key if re.fullmatch(r"[\w.-]{1,80}", key) else shown(key)
