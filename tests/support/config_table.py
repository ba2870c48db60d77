"""The table of transformers' config classes that a shape is read from without transformers.

`python tests/support/config_table.py > suites/training/layouts/config_classes.jsonl` writes it
again, from the installed version; a test compares the two.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, Union, get_args, get_origin

import transformers
from transformers import PreTrainedConfig
from transformers.configuration_utils import _LEGACY_LAYER_TYPE_REMAP as LEGACY
from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES, ALLOWED_MLP_LAYER_TYPES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from harness.records import Unavailable
from suites.training.layouts.shape_of_config import ARCHITECTURES
from suites.training.models.config_fault import IGNORED
from suites.training.models.huggingface_config import parse

SIMPLE = {one: one.__name__ for one in (int, float, bool, str, dict, list)} | {type(None): "null"}
DIVISIBLE = "self.hidden_size % self.num_attention_heads != 0"
"""What config classes write that refuse a hidden size which the heads do not divide."""


def rows() -> Iterator[dict[str, Any]]:
    """Yield what all classes have, each architecture's class, and what contains one of these as its text."""
    yield {
        "model_type": "",
        "transformers": transformers.__version__,
        "read_only": read_only(PreTrainedConfig),
        "layer_types": sorted({*ALLOWED_ATTN_LAYER_TYPES, *LEGACY}),
        "mlp_layer_types": sorted(ALLOWED_MLP_LAYER_TYPES),
    }
    for model_type in sorted(ARCHITECTURES):
        yield row(model_type)
    for model_type in sorted(CONFIG_MAPPING_NAMES.keys() - ARCHITECTURES.keys()):
        yield from rows_of_text(model_type)


def row(model_type: str) -> dict[str, Any]:
    """Return one class: its defaults, the types of its fields, and other names of them."""
    config_class = CONFIG_MAPPING[model_type]
    common = {one.name for one in fields(PreTrainedConfig)}
    own = [one for one in fields(config_class) if one.name not in common and one.name not in IGNORED]
    entries = {
        "renames": config_class.attribute_map,
        "read_only": sorted(set(read_only(config_class)) - set(read_only(PreTrainedConfig))),
        "heads_divide": DIVISIBLE in inspect.getsource(config_class.validate_architecture),
        "defaults": {one.name: default(one) for one in own},
        "kinds": {one.name: kind for one in own if (kind := kinds(one.type))},
    }
    return {"model_type": model_type, **{name: entry for name, entry in entries.items() if entry}}


def read_only(config_class: Any) -> list[str]:
    members = inspect.getmembers(config_class, lambda one: isinstance(one, property) and one.fset is None)
    return sorted(name for name, _ in members)


def default(field: Any) -> Any:
    """Return a field's default; tuples are lists, as in JSON."""
    value = field.default if field.default is not MISSING else None
    return list(value) if isinstance(value, tuple) else value


def kinds(annotation: Any) -> str:
    """Return the types of a field by name, as "int|null"; "" where nothing that JSON has is refused."""
    if get_origin(annotation) in (Union, UnionType):
        every = [kinds(one) for one in get_args(annotation)]
        return "|".join(sorted({kind for one in every for kind in one.split("|")})) if all(every) else ""
    if get_origin(annotation) is list:
        item = kinds(get_args(annotation)[0])
        return f"list:{item.replace('|', ',')}" if item else "list"
    if get_origin(annotation) is dict or getattr(annotation, "__name__", "") == "RopeParameters":
        return "dict"
    return SIMPLE.get(annotation, "")


def rows_of_text(model_type: str) -> Iterator[dict[str, Any]]:
    """Yield what contains a model with a shape, and the values that it gives the model where it has none."""
    try:
        parsed = parse({"model_type": model_type})
    except Unavailable:
        return
    text = parsed.model_type
    if text not in ARCHITECTURES:
        return
    another_name = CONFIG_MAPPING[model_type] is type(parsed)  # its keys are the model's own
    section = CONFIG_MAPPING[model_type].sub_configs_defaults.get("text_config")
    given = {} if another_name or section is None else section.init_kwargs
    values = {name: value for name, value in given.items() if name not in IGNORED}
    yield {"model_type": model_type, "text": text, "another_name": another_name, "values": values}


if __name__ == "__main__":
    for each in rows():
        sys.stdout.write(json.dumps(each) + "\n")
