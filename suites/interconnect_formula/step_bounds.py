"""A training step on a cluster, and its time by closed formulas: bounds from a best case to a worst case.

Two assumptions about traffic and two about overlap span the bounds. The best case moves `node_aware` traffic
and hides as much of it as possible. The worst case moves `ring` traffic and hides nothing. The parameters of
a config.json's model are counted, and those that one token uses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, Self

from harness.records import Unavailable
from suites.interconnect_formula.workload import Workload
from suites.training.step_time import published as published_run
from suites.training.step_time.collectives import (
    Cluster,
    Exchange,
    TrafficPattern,
    communication_seconds,
    latency_seconds,
    link_bytes,
    overlapped_s,
)


class Assumption(NamedTuple):
    """One assumption about traffic and one about overlap."""

    traffic: TrafficPattern
    overlap: Literal["none", "perfect"]


BEST = Assumption("node_aware", "perfect")
WORST = Assumption("ring", "none")


class BestAndWorstCase(NamedTuple):
    """One quantity under `BEST` and under `WORST`; `at_best` need not be the smaller of the two."""

    at_best: float
    at_worst: float

    @classmethod
    def same(cls, value: float) -> Self:
        """Return the bounds of a value that depends on neither assumption."""
        return cls(value, value)


def step_seconds(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, compute_s: float, assumed: Assumption
) -> float:
    """Return the seconds per step: computation plus communication, or the longer where they overlap."""
    communication_s = communication_seconds(exchange, cluster, rate_B_per_s, assumed.traffic)
    exposed = 0.0 if assumed.overlap == "perfect" else 1.0
    return float(overlapped_s(compute_s, communication_s, exposed))


def step_bounds(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, compute_s: BestAndWorstCase
) -> BestAndWorstCase:
    """Return the seconds per step in the best and in the worst case, each with its own computation."""
    return BestAndWorstCase(
        step_seconds(exchange, cluster, rate_B_per_s, compute_s.at_best, BEST),
        step_seconds(exchange, cluster, rate_B_per_s, compute_s.at_worst, WORST),
    )


def compute_left(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, step_s: float
) -> BestAndWorstCase:
    """Return the seconds of computation in a step that took `step_s` over a link of `rate_B_per_s`.

    The model is solved for the computation under each assumption. It reproduces this one step by
    construction, and only steps at other rates are predictions. With perfect overlap the computation is the
    full step. At rates above the calibrated one the bounds change places, because the sum falls there and the
    maximum does not. Raises ValueError where communication alone takes longer than the step.
    """
    communication_s = communication_seconds(exchange, cluster, rate_B_per_s, WORST.traffic)
    if communication_s >= step_s:
        raise ValueError(
            f"no time is left for computation: {WORST.traffic} traffic alone takes {communication_s:.3g} s "
            f"of a step of {step_s:.3g} s"
        )
    return BestAndWorstCase(step_s, step_s - communication_s)


def sufficient_rate(
    exchange: Exchange,
    cluster: Cluster,
    compute_s: BestAndWorstCase,
    added: float = 0.05,
    other: Exchange | None = None,
) -> BestAndWorstCase:
    """Return the link rate in B/s from which a step takes at most (1 + added) times that of `other`.

    `other`: an exchange that sends less; None sends nothing, so the network adds the share `added` to the
    computation. With traffic B and latency L, without overlap: (B - (1 + added) B') / (added compute_s + (1 +
    added) L' - L). With perfect overlap: B / ((1 + added) compute_s - L), or less where both steps wait for
    their links. Infinite where latency alone adds more; 0 on one node.
    """

    def traffic_and_latency(traffic: TrafficPattern) -> tuple[float, float, float, float]:
        own = link_bytes(exchange, cluster, traffic), latency_seconds(exchange, cluster)
        if other is None:
            return *own, 0.0, 0.0
        return *own, link_bytes(other, cluster, traffic), latency_seconds(other, cluster)

    more = 1 + added
    sent_B, latency_s, others_B, others_s = traffic_and_latency(BEST.traffic)
    at_best = min(
        _rate(sent_B, more * compute_s.at_best - latency_s),
        _rate(sent_B - more * others_B, more * others_s - latency_s),
    )
    sent_B, latency_s, others_B, others_s = traffic_and_latency(WORST.traffic)
    at_worst = _rate(sent_B - more * others_B, added * compute_s.at_worst + more * others_s - latency_s)
    return BestAndWorstCase(at_best, at_worst)


def _rate(traffic_B: float, room_s: float) -> float:
    """Return the least rate at which `traffic_B` takes at most `room_s`."""
    if room_s > 0:
        return max(traffic_B, 0.0) / room_s
    return math.inf if traffic_B > 0 or room_s < 0 else 0.0


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
