"""The model of a user's config.json in the training step: transformers' own, with all that the config says.

Only dropout is left out, because variants are compared loss by loss. Its parameters are counted without
weights, on the meta device.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from harness.records import Unavailable
from suites.kernels.workload import Workload
from suites.training.models import huggingface, huggingface_config
from suites.training.models.huggingface_config import refuse_quantized
from suites.training.workload import Workload as TrainingWorkload

STATES_B = 16
"""Bytes per parameter of a step in fp32: weight, gradient and AdamW's two moments."""

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Attributes for the number of experts of a layer in transformers' config classes."""


class Counts(NamedTuple):
    """Parameters of a model: all, and those that multiply for each token."""

    parameters: int
    multiplied: float


def adopted(workload: Workload) -> Workload:
    """Return the workload with its config's sizes and without dropout; raises `Unavailable`."""
    config = workload.hf_config
    if config is None:
        return workload
    if workload.operation != "training_step" or workload.part != "all":
        raise Unavailable("a config.json describes a model: operation=training_step part=all trains it")
    refuse_quantized(config)
    given = {**asdict(workload), "hf_config": huggingface_config.without_dropout(config)}
    complete = huggingface.complete(TrainingWorkload.of(given))
    common = {one.name for one in fields(Workload)} & {one.name for one in fields(complete)}
    return replace(workload, **{name: getattr(complete, name) for name in common})


def counts(workload: Workload) -> Counts:
    """Return the parameters of the workload's config; of experts those that a token reaches multiply."""
    return _counts(json.dumps(workload.hf_config, sort_keys=True))


@lru_cache(maxsize=8)
def _counts(config: str) -> Counts:
    with torch.device("meta"):
        model = huggingface.build(json.loads(config))
    tables = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    tables -= {id(parameter) for parameter in model.output_layer().parameters()}  # tied: it multiplies there
    reached = share_of_experts(model.model.config)
    multiplied = sum(
        parameter.numel() * (reached if ".experts." in name else 1.0)
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and id(parameter) not in tables
    )
    return Counts(sum(one.numel() for one in model.parameters()), multiplied)


def share_of_experts(parsed: Any) -> float:
    """Return the share of a layer's experts that one token reaches; 1 without experts."""
    count = next((value for name in EXPERTS if (value := getattr(parsed, name, None))), None)
    return float(getattr(parsed, "num_experts_per_tok", None) or count) / count if count else 1.0


def has_experts(workload: Workload) -> bool:
    """Return whether the config's layers choose among experts, which a rounding can change."""
    config = workload.hf_config
    return config is not None and share_of_experts(huggingface_config.parse(config)) < 1


def layers_that_fit(workload: Workload, room_B: float, activations_B: Callable[[Workload], float]) -> str:
    """Return in words which part of the config's model would fit into `room_B`; layers are taken as alike."""
    config = workload.hf_config or {}
    one, two = (
        counts(replace(workload, hf_config=huggingface_config.with_layers(config, count))).parameters
        for count in (1, min(2, workload.num_hidden_layers))
    )
    for count in range(workload.num_hidden_layers - 1, 0, -1):
        states_B = states_in_memory_B(one + (count - 1) * (two - one))
        if states_B + activations_B(replace(workload, num_hidden_layers=count)) <= room_B:
            return f"suite.hf_defaults.num_hidden_layers={count} would fit"
    return "one layer with the embeddings does not fit either; try a smaller suite.hf_defaults.seq_len"


def states_in_memory_B(parameters: float) -> float:
    """Return the bytes of states at most: of one step shared by all variants, of one being checked, and the
    gradients that it is compared with."""
    return (2 * STATES_B + 4) * parameters
