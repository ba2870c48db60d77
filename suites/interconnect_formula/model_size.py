"""Count the parameters of a Hugging Face config.json's model, and those that one token uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from harness.records import Unavailable

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Attributes of config classes with the number of a layer's experts, which a router chooses from."""

CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
"""Attributes with the number of experts that each token is sent to."""


class ModelSize(NamedTuple):
    """Parameters in all, and those that one token uses: all but the experts that it is not sent to."""

    parameters: int
    active: int
    num_hidden_layers: int


def model_size(config: Mapping[str, Any]) -> ModelSize:
    """Return the size of the model; raises `Unavailable` where transformers has no such model."""
    return _counted(json.dumps(config, sort_keys=True))


@cache
def _counted(config_json: str) -> ModelSize:
    import torch

    from suites.training.models.huggingface import build
    from suites.training.models.huggingface_config import parse, refuse_quantized

    config = json.loads(config_json)
    refuse_quantized(config)
    with torch.device("meta"):
        sizes = {name: p.numel() for name, p in build(config).named_parameters()}  # shared ones once
    routed = sum(size for name, size in sizes.items() if ".experts." in name)
    every = sum(sizes.values())
    parsed = parse(config)
    if not routed:
        return ModelSize(every, every, parsed.num_hidden_layers)
    experts, chosen = (
        next((n for name in names if isinstance(n := getattr(parsed, name, None), int) and n), None)
        for names in (EXPERTS, CHOSEN)
    )
    if experts is None or chosen is None:
        raise Unavailable(
            f"{config.get('model_type')}: its config does not say how many experts a token uses; give "
            "suite.hf_defaults.active_parameters"
        )
    return ModelSize(every, every - routed + routed * chosen // experts, parsed.num_hidden_layers)
