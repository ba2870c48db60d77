"""The shape of a Hugging Face config.json, for architectures whose parameters are counted exactly.

Neither torch nor transformers is needed: the defaults of transformers' classes are a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.config.user_inputs.hf_config import unknown_model_type
from harness.instruments.transformer.shape import TransformerShape
from harness.records import Unavailable
from suites.training.layouts.architectures.config_classes import config_values
from suites.training.layouts.architectures.dense import DENSE, Own
from suites.training.layouts.architectures.experts import EXPERTS
from suites.training.layouts.architectures.older import OLDER
from suites.training.layouts.shape_of_sizes import shape_of_sizes

ARCHITECTURES: Mapping[str, Callable[[Any], Own]] = {**DENSE, **OLDER, **EXPERTS}
"""Architectures by model_type."""


def shape_of_config(config: Mapping[str, Any]) -> TransformerShape:
    """Return the shape of a config.json's content; raises `Unavailable` with one line where it has none."""
    values = config_values(config)
    if values is None:
        model_type = str(config.get("model_type"))
        raise Unavailable(unknown_model_type(model_type, "auto_map" in config) or _other(model_type))
    try:
        return shape_of_parsed(values)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unavailable(
            f"config.json of model_type {values.model_type!r}: its sizes give no model: {error}"
        ) from error


def shape_of_parsed(parsed: Any) -> TransformerShape:
    """Return the shape of transformers' own config object; raises `Unavailable` for other architectures."""
    if parsed.model_type not in ARCHITECTURES:
        raise Unavailable(_other(parsed.model_type))
    return shape_of_sizes(parsed, ARCHITECTURES[parsed.model_type](parsed))


def _other(model_type: str) -> str:
    return (
        f"model_type {model_type!r}: layouts are answered for {len(ARCHITECTURES)} decoders of attention and "
        "MLPs, such as llama, qwen3, mixtral, deepseek_v3, falcon, mpt; harness.fit answers for it without "
        "layout="
    )
