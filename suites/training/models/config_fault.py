"""Name the key of a config.json with which transformers cannot build or run a model, in one line.

Its own checks name a field of a class; what it does not check fails anywhere. So each key that the config
gives is left out in turn, or a number set to 1: where the model works then, the key is at fault.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.config.hf_config import fault, shown

Try = Callable[[Mapping[str, Any]], Any]
"""Builds the model of a config, or runs it; raises where it cannot."""

IGNORED = frozenset(
    [
        "architectures",
        "attn_implementation",
        "_attn_implementation",
        "auto_map",
        "dtype",
        "model_type",
        "_name_or_path",
        "quantization_config",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    ]
)
"""Keys about storing and loading weights; nothing is loaded here, and others' code is never run."""

IN_FIELD = re.compile(r"Validation error for field '(\w+)'")
EXPECTED = re.compile(r"expected (\w+), got")
PYTHON_TYPES = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}

A_FACTOR = 2.0  # which every number of a rotary embedding's section may be
LONGEST_S = 10.0  # in which keys are left out; models of many layers take seconds each
MOST_KEYS = 2  # that are named where either is at fault, such as a size and what must divide it
MOST_LENGTH = 120  # characters of an error's own message that are repeated


def explained(
    config: Mapping[str, Any], error: Exception, attempt: Try, attributes: Mapping[str, str]
) -> str:
    """Return the key at fault, its value and what is allowed; else the error in one line.

    `attempt`: what failed with `config`. `attributes`: a class's names of keys (`attribute_map`).
    """
    if found := IN_FIELD.search(str(error)):
        key = _given(config, found[1], attributes)
        return fault(key, config.get(key), _expected(key, config.get(key), str(error)))
    found_at: dict[str, Any] = {}
    until_s = time.monotonic() + LONGEST_S
    for path, value in _culprits(config, error, attempt, until_s):
        if allowed := _allowed(path):
            return fault(path, value, allowed)
        found_at[path] = value
        if len(found_at) == MOST_KEYS or not isinstance(value, int | float):
            break
    if not found_at:
        return one_line(error)
    keys = " and ".join(f"{path} is {shown(value)}" for path, value in found_at.items())
    return f"{keys}, with which it fails: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """Return an exception in one line without the names of Python's own helpers."""
    text = " ".join(str(error).split())
    text = re.sub(r"^Class validation error for validator '\w+': \w+: ", "", text)
    text = text if len(text) <= MOST_LENGTH else f"{text[: MOST_LENGTH - 2]} …"
    return f"{type(error).__name__}: {text}" if not text or isinstance(error, KeyError) else text


def _given(config: Mapping[str, Any], field: str, attributes: Mapping[str, str]) -> str:
    """Return the key of the config that gives a field of its class."""
    others = [name for name, meant in attributes.items() if meant == field]
    aliases = {"rope_parameters": ["rope_scaling"]}
    names = [field, *others, attributes.get(field, field), *aliases.get(field, [])]
    return next((name for name in names if name in config), field)


def _expected(key: str, value: Any, message: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and "expected float" in message:
        return f"a number with a decimal point, as {value}.0"
    if key in ("rope_scaling", "rope_parameters"):
        return "an object with rope_type and its parameters, or null"
    found = EXPECTED.search(message)
    if found is not None and found[1] in PYTHON_TYPES:
        return PYTHON_TYPES[found[1]]
    union = re.search(r"doesn't match any type in \(([^)]*)\)", message)
    types = union[1] if union else ""
    named = [words for name, words in PYTHON_TYPES.items() if f"'{name}'" in types]
    named += ["a list"] if "list[" in types else []
    return " or ".join(named) or "of the type that its architecture has"


def _culprits(
    config: Mapping[str, Any], error: Exception, attempt: Try, until_s: float
) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each key without which the config works, of those tried in time."""
    for key in sorted((one for one in config if one != "model_type"), key=lambda one: one not in str(error)):
        if time.monotonic() > until_s:
            return
        value = config[key]
        others = [{name: one for name, one in config.items() if name != key}]
        if type(value) in (int, float):
            others.append({**config, key: type(value)(1)})
        if any(_works(attempt, one) for one in others):
            if isinstance(value, dict):
                yield from ((f"{key}.{inner}", value[inner]) for inner in _inner(config, key, attempt))
            yield key, value


def _inner(config: Mapping[str, Any], key: str, attempt: Try) -> Iterator[str]:
    """Yield each key of a section without which, or with a small number in its place, the config works."""
    section = config[key]
    for inner in sorted(section, key=lambda one: one in ("rope_type", "type")):
        less = {name: one for name, one in section.items() if name != inner}
        for other in (less, {**section, inner: A_FACTOR}):
            if other and _works(attempt, {**config, key: other}):
                yield inner
                break


def _works(attempt: Try, config: Mapping[str, Any]) -> bool:
    try:
        attempt(config)
    except Exception:
        return False
    return True


def _allowed(path: str) -> str:
    """Return what a key allows where that is a closed list: activations and kinds of rotary embeddings."""
    from transformers.activations import ACT2FN
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    key = path.rpartition(".")[2]
    if key in ("rope_type", "type"):
        return f"one of {', '.join(sorted(['default', *ROPE_INIT_FUNCTIONS]))}"
    if "act" in key and not key.endswith(("factor", "_dim", "layer")):
        usual = ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu")
        return f"an activation of transformers, such as {', '.join(n for n in usual if n in ACT2FN)}"
    return ""
