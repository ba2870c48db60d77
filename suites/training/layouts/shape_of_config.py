"""The shape of a Hugging Face config.json, for architectures whose parameters are counted exactly.

`python -m suites.training.layouts < config.json` prints it as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.instruments.transformer.shape import TransformerShape
from harness.records import Unavailable
from suites.training.layouts.architectures.dense import DENSE, Own
from suites.training.layouts.architectures.experts import EXPERTS
from suites.training.layouts.architectures.older import OLDER
from suites.training.layouts.shape_of_sizes import shape_of_sizes
from suites.training.models.huggingface_config import parse

ARCHITECTURES: Mapping[str, Callable[[Any], Own]] = {**DENSE, **OLDER, **EXPERTS}
"""Architectures by model_type."""


def shape_of_config(config: Mapping[str, Any]) -> TransformerShape:
    """Return the shape of a config.json's content; raises `Unavailable` for other architectures."""
    return shape_of_parsed(parse(config))


def shape_of_parsed(parsed: Any) -> TransformerShape:
    """Return the shape of transformers' own config object; raises `Unavailable` for other architectures."""
    if parsed.model_type not in ARCHITECTURES:
        raise Unavailable(
            f"model_type {parsed.model_type!r}: layouts are answered for {len(ARCHITECTURES)} decoders of "
            "attention and MLPs, such as llama, qwen3, mixtral, deepseek_v3, falcon, mpt; harness.fit "
            "answers for it without layout="
        )
    return shape_of_sizes(parsed, ARCHITECTURES[parsed.model_type](parsed))
