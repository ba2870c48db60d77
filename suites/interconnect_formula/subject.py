"""The interconnect_formula suite's types: a training step on a cluster, and a variant's communication.

Count the parameters of a Hugging Face config.json's model, and those that one token uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from harness.records import Unavailable
from suites.interconnect_formula.workload import Workload
from suites.training.step_time import published_run
from suites.training.step_time.node_traffic import Exchange

STATE_B = 16
"""Bytes per parameter in mixed precision with Adam: arXiv 1910.02054, section 3.1."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a workload behind a link, with what the variant changes in its communication."""

    workload: Workload
    parameters: float
    active_parameters: float  # those that one token uses
    link_B_per_s: float
    gradient_accumulation_steps: int = 1
    hybrid_shard: bool = False  # shard within a node, replicate across nodes

    @property
    def exchange(self) -> Exchange:
        """Return what a micro-batch sends: two bytes per parameter, and gradients once per update.

        Each layer is gathered and reduced separately; latency counts as if gradients were reduced per
        micro-batch.
        """
        return Exchange(
            self.parameters,
            "hybrid" if self.hybrid_shard else "fsdp",
            published_run.ELEMENT_B,
            published_run.ELEMENT_B / self.gradient_accumulation_steps,
            self.workload.num_hidden_layers,
        )

    @property
    def state_B(self) -> float:
        """Return the bytes of one GPU's share of parameters, gradients and optimizer states."""
        cluster = self.workload.cluster
        shards = cluster.gpus_per_node if self.hybrid_shard else cluster.gpus
        return STATE_B * self.parameters / shards

    @property
    def tokens_per_update(self) -> int:
        """Return the tokens of all GPUs per update of the parameters."""
        return self.workload.tokens_per_gpu * self.workload.cluster.gpus * self.gradient_accumulation_steps


def validate_states(subject: Subject) -> None:
    """Raise `Unavailable` where the states of a variant do not fit its GPUs; activations are not counted."""
    if subject.state_B > subject.workload.room_B:
        shards = "a node's" if subject.hybrid_shard else "all"
        cluster = subject.workload.cluster
        gpus = cluster.gpus_per_node if subject.hybrid_shard else cluster.gpus
        raise Unavailable(
            f"parameters={subject.parameters:g}: {subject.state_B / 1e9:.0f} GB of states for each of "
            f"{shards} {gpus} devices, which have {subject.workload.room_B / 1e9:.0f} GB"
        )


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
