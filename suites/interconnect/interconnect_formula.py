"""The interconnect_formula suite: step times of models that are too large for this host, calculated.

The baseline is FSDP2 over the workload's link, in bf16. The computation is the step's FLOP over a share of
the GPU's peak that the workload states, or over the rate of the run which Table III quotes.

Each time is a pair of bounds, [at best, at worst], of which the first need not be the smaller one. The best
case moves `node_aware` traffic and hides as much of it as possible. The worst case moves `ring` traffic and
hides nothing. The parameters of a config.json's model are counted, and those that one token uses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.records import Json, Origin, Reading, Unavailable, WrongResult
from suites.interconnect.workload import InterconnectFormulaWorkload
from suites.training.step_time import published as published_run
from suites.training.step_time.collectives import (
    Cluster,
    Exchange,
    TrafficPattern,
    communication_seconds,
    crossing_share,
    latency_seconds,
    link_bytes,
    overlapped_s,
    training_flop,
)

Pair = NDArray[np.float64]
"""One quantity at best and at worst (2,)."""

TRAFFIC: tuple[TrafficPattern, TrafficPattern] = ("node_aware", "ring")
EXPOSED = np.array([0.0, 1.0])
"""Share of the communication that computation cannot hide."""


def step_bounds(exchange: Exchange, cluster: Cluster, rate_B_per_s: float, compute_s: Pair | float) -> Pair:
    """Return the seconds per step: computation plus communication, or the longer where they overlap."""
    sent_s = [communication_seconds(exchange, cluster, rate_B_per_s, traffic) for traffic in TRAFFIC]
    return np.asarray(overlapped_s(np.asarray(compute_s), np.array(sent_s), EXPOSED))


def compute_left(exchange: Exchange, cluster: Cluster, rate_B_per_s: float, step_s: float) -> Pair:
    """Return the seconds of computation in a step that took `step_s` over a link of `rate_B_per_s`.

    With perfect overlap that is the full step. At rates above the calibrated one the bounds change places,
    because the sum falls there and the maximum does not. Raises ValueError where communication alone takes
    longer than the step.
    """
    communication_s = communication_seconds(exchange, cluster, rate_B_per_s, TRAFFIC[1])
    if communication_s >= step_s:
        raise ValueError(
            f"no time is left for computation: {TRAFFIC[1]} traffic alone takes {communication_s:.3g} s "
            f"of a step of {step_s:.3g} s"
        )
    return np.array([step_s, step_s - communication_s])


def sufficient_rate(
    exchange: Exchange,
    cluster: Cluster,
    compute_s: Pair | float,
    added: float = 0.05,
    other: Exchange | None = None,
) -> Pair:
    """Return the link rate in B/s from which a step takes at most (1 + added) times that of `other`.

    `other`: an exchange that sends less; None sends nothing. With traffic B and latency L, without overlap:
    (B - (1 + added) B') / (added compute_s + (1 + added) L' - L). With perfect overlap: B / ((1 + added)
    compute_s - L), or less where both steps wait for their links. Infinite where latency alone adds more.
    """
    more, (best_s, worst_s) = 1 + added, np.broadcast_to(compute_s, 2).tolist()
    latency_s, others_s = (latency_seconds(one, cluster) if one else 0.0 for one in (exchange, other))
    best_B, worst_B = (link_bytes(exchange, cluster, one) for one in TRAFFIC)
    others_best_B, others_worst_B = (link_bytes(other, cluster, one) if other else 0.0 for one in TRAFFIC)
    at_best = min(
        _rate(best_B, more * best_s - latency_s),
        _rate(best_B - more * others_best_B, more * others_s - latency_s),
    )
    at_worst = _rate(worst_B - more * others_worst_B, added * worst_s + more * others_s - latency_s)
    return np.array([at_best, at_worst])


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

    workload: InterconnectFormulaWorkload
    parameters: float
    active_parameters: float  # those that one token uses
    link_B_per_s: float
    gradient_accumulation_steps: int = 1
    hybrid_shard: bool = False  # shard within a node, replicate across nodes

    @property
    def exchange(self) -> Exchange:
        """Return what a micro-batch sends: two bytes per parameter, and gradients once per update.

        Latency counts for each layer, as if gradients were reduced per micro-batch.
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


PUBLISHED_TOKENS_PER_GPU = 4 * 1024
"""Four sequences of 1,024 tokens: the defaults of the script that the run's author published. The run's own
values are not stated."""

CASES = ("at best", "at worst")

OTHER_MFUS = (0.2, 0.4, 0.6)
"""Shares of the peak for which step times are calculated as well: what a slow and a fast job achieve."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: FSDP2 over the workload's own link; raises `Unavailable`."""
    given = InterconnectFormulaWorkload(**workload)
    if given.parameters is None and given.hf_config is None:
        raise Unavailable("parameters: missing; expected a number, or suite.workload_from=config.json")
    if given.mfu is not None and given.peak_FLOP_per_s is None:
        raise Unavailable(
            f"mfu={given.mfu:g}: the peak of {given.device_name or 'the device'} is unknown; choose a "
            "hardware= with a bf16 rate, or give peak_FLOP_per_s"
        )
    if given.parameters is None:
        size = model_size(given.hf_config or {})
        given = replace(given, num_hidden_layers=size.num_hidden_layers)
        parameters, active = float(size.parameters), float(size.active)
    else:
        parameters = active = given.parameters
    subject = Subject(given, parameters, given.active_parameters or active, given.link_B_per_s)
    validate_states(subject)
    return subject


def check(subject: Subject) -> None:
    """Compare a step with the least that any algorithm computes and sends; raises `WrongResult`.

    An update needs the sum of all nodes' gradients: at the least, the part that each node does not keep
    crosses its link once.
    """
    cluster = subject.workload.cluster
    gradients_B = published_run.ELEMENT_B * subject.parameters / subject.gradient_accumulation_steps
    least_B = crossing_share(cluster, TRAFFIC[0]) * gradients_B
    compute_s = compute_bounds(subject)
    least_s = max(compute_s[0], least_B / subject.link_B_per_s)
    step_s = step_bounds(subject.exchange, cluster, subject.link_B_per_s, compute_s)[0]
    if not least_s <= step_s < math.inf:
        raise WrongResult(f"a step takes {step_s:.4g} s; no algorithm takes less than {least_s:.4g} s")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may require, and what the times assume."""
    workload = subject.workload
    return {
        "device": "cuda",
        "device_name": workload.device_name,
        "strategy": "fsdp2",
        "precision": "bf16",
        "nodes": str(workload.nodes),
        "ranks_per_node": str(workload.ranks_per_node),
        "network": "a formula",
        "link_B_per_s": f"{subject.link_B_per_s:g}",
        "tokens_per_gpu": str(workload.tokens_per_gpu),
        "compute_rate": "the published run's" if workload.mfu is None else f"MFU {workload.mfu:.0%}",
    }


def sample(subject: Subject) -> Iterator[Reading]:
    """Calculate seconds per micro-batch, what they assume, and the link rates that suffice."""
    workload, cluster = subject.workload, subject.workload.cluster
    compute_s = compute_bounds(subject)
    baseline = replace(
        subject, link_B_per_s=workload.link_B_per_s, gradient_accumulation_steps=1, hybrid_shard=False
    )
    slow_s = step_bounds(baseline.exchange, cluster, baseline.link_B_per_s, compute_s)
    step_s = step_bounds(subject.exchange, cluster, subject.link_B_per_s, compute_s)
    yield Reading("link_rate", "B/s", subject.link_B_per_s, Origin.CALCULATED, "paper")
    yield from bounds_readings("time", "s", step_s)
    yield from bounds_readings("speedup", "1", slow_s / step_s)
    yield from bounds_readings("enough_rate", "B/s", sufficient_rate(subject.exchange, cluster, compute_s))
    if subject.exchange != baseline.exchange:
        ends = sufficient_rate(baseline.exchange, cluster, compute_s, other=subject.exchange)
        yield from bounds_readings("gain_ends_rate", "B/s", ends)
    yield from assumptions(subject, compute_s)
    if workload.peak_FLOP_per_s is not None:
        for mfu in OTHER_MFUS:
            other_s = flop(subject) / (mfu * workload.peak_FLOP_per_s)
            bounds_s = step_bounds(subject.exchange, cluster, subject.link_B_per_s, other_s)
            for method, value in zip(CASES, bounds_s.tolist(), strict=True):
                yield Reading("time", "s", value, Origin.CALCULATED, f"{method}, MFU {mfu:.0%}")


def assumptions(subject: Subject, compute_s: Pair) -> Iterator[Reading]:
    """Yield the sizes and the compute rate that the times assume, and what the variant needs."""
    workload = subject.workload
    rate = flop(subject) / compute_s
    for metric, unit, value in (
        ("parameters", "1", subject.parameters),
        ("active_parameters", "1", subject.active_parameters),
        ("tokens_per_gpu", "1", float(workload.tokens_per_gpu)),
        ("tokens_per_update", "1", float(subject.tokens_per_update)),
        ("state_memory", "B", subject.state_B),
        ("room", "B", workload.room_B),
    ):
        yield Reading(metric, unit, value, Origin.CALCULATED)
    yield from bounds_readings("computation", "s", compute_s)
    yield from bounds_readings("compute_rate", "FLOP/s", rate)
    if workload.peak_FLOP_per_s is not None:
        yield from bounds_readings("compute_share", "1", rate / workload.peak_FLOP_per_s)


def bounds_readings(metric: str, unit: str, bounds: Pair) -> Iterator[Reading]:
    """Yield each bound by its own method, and both as samples of the method `band`."""
    for method, value in zip(CASES, bounds.tolist(), strict=True):
        yield Reading(metric, unit, value, Origin.CALCULATED, method)
        yield Reading(metric, unit, value, Origin.CALCULATED, "band")


def flop(subject: Subject) -> float:
    """Return the model FLOP of one GPU per micro-batch."""
    return float(training_flop(subject.active_parameters, subject.workload.tokens_per_gpu))


def compute_bounds(subject: Subject) -> Pair:
    """Return the seconds of computation per micro-batch under both assumptions.

    Without `mfu` the rate is that of the published run: its FLOP over its measured step, less the
    communication over the fast link.
    """
    workload = subject.workload
    if workload.mfu is not None and workload.peak_FLOP_per_s is not None:
        return np.full(2, flop(subject) / (workload.mfu * workload.peak_FLOP_per_s))
    published = Exchange(published_run.PARAMETERS, "fsdp", published_run.ELEMENT_B)
    cluster = Cluster(published_run.NODES, published_run.GPUS_PER_NODE)
    left = compute_left(published, cluster, published_run.FAST_B_PER_S, published_run.FAST_STEP_S)
    share = flop(subject) / float(training_flop(published_run.PARAMETERS, PUBLISHED_TOKENS_PER_GPU))
    return left * share
