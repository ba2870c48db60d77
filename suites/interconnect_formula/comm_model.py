"""Step time over several nodes by closed formulas: bounds from a best case to a worst case.

Two assumptions about traffic and two about overlap span the bounds. The best case moves `node_aware` traffic
and hides as much of it as possible. The worst case moves `ring` traffic and hides nothing. Each node has one
full-duplex link. Its rate and its bytes are those of one direction, which are equal in both. Links inside a
node are assumed to cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

Strategy = Literal["fsdp", "ddp", "hybrid"]
"""fsdp: all states are sharded over all GPUs (ZeRO-3). ddp: nothing is sharded. hybrid: states are sharded
within a node and replicated across nodes."""

TrafficPattern = Literal["ring", "node_aware"]
"""How a collective crosses between nodes: see `crossing_share`."""

FORWARD_FLOP = 2
"""FLOP per parameter and token, forward: one multiplication, one addition (Kaplan et al., arXiv
2001.08361)."""

BACKWARD_FLOP = 4
"""FLOP per parameter and token, backward: twice the forward pass (the same paper, section 2.1)."""


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


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes with one link each; `latency_s` is the time of one collective between nodes with no bytes."""

    nodes: int
    gpus_per_node: int
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1 or self.latency_s < 0:
            raise ValueError(
                f"{self}: a cluster needs at least one node, one GPU per node and a latency of 0 s or more"
            )

    @property
    def gpus(self) -> int:
        """Return the number of GPUs in all nodes."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one step sends: `element_B` bytes per parameter and `gradient_B` bytes per gradient.

    `gradient_B=None` means as many bytes as a parameter has. `units` counts the parts that are gathered and
    reduced separately (FSDP's wrapped layers, DDP's buckets). It multiplies the latency, not the bytes.
    """

    parameters: float
    strategy: Strategy = "fsdp"
    element_B: float = 2.0
    gradient_B: float | None = None
    units: int = 1


def crossing_share(cluster: Cluster, traffic: TrafficPattern) -> float:
    """Return the share of a collective's bytes that crosses each node's link in one direction.

    It is the same for an all-gather and a reduce-scatter.

    ring: each of N GPUs passes N-1 of N chunks to its successor, and in each node exactly one GPU has its
    successor in another node: (N-1)/N (NVIDIA nccl-tests, PERFORMANCE.md). This assumes that neighbours in
    the ring share a node wherever they can. A ring that changes node at every hop sends `gpus_per_node` times
    as much, which is outside of both bounds. node_aware: a node must receive what it does not have, or send
    its sums of what it does not keep: (nodes-1)/nodes. Only a switch that reduces or multicasts can need
    less. One node: nothing crosses.
    """
    if cluster.nodes == 1:
        return 0.0
    parts = cluster.gpus if traffic == "ring" else cluster.nodes
    return (parts - 1) / parts


def link_bytes(exchange: Exchange, cluster: Cluster, traffic: TrafficPattern = "ring") -> float:
    """Return the bytes per step that cross each node's link in one direction.

    With s = `crossing_share` and P = parameters: fsdp: two all-gathers (forward, and backward after
    resharding) and one reduce-scatter, s P (2 element_B + gradient_B) (arXiv 1910.02054, section 7.2.2). ddp:
    an all-reduce, which is a reduce-scatter and an all-gather, 2 s P gradient_B (section 7.1). hybrid: the
    GPUs of a node gather and reduce among themselves. Then each all-reduces its shard, P/gpus_per_node, with
    its peers, one in every node. That ring has `nodes` ranks, so each of the gpus_per_node GPUs sends 2
    (nodes-1)/nodes P/gpus_per_node gradient_B: 2 (nodes-1)/nodes P gradient_B per node. Both bounds are equal
    to that of node-aware ddp.
    """
    gradient_B = exchange.element_B if exchange.gradient_B is None else exchange.gradient_B
    if exchange.strategy == "hybrid":
        traffic = "node_aware"
    share = crossing_share(cluster, traffic)
    if exchange.strategy == "fsdp":
        return share * exchange.parameters * (2 * exchange.element_B + gradient_B)
    return share * exchange.parameters * 2 * gradient_B


def latency_seconds(exchange: Exchange, cluster: Cluster) -> float:
    """Return the latency of a step's collectives between nodes: three per unit for fsdp, else one."""
    if cluster.nodes == 1:
        return 0.0
    return cluster.latency_s * exchange.units * (3 if exchange.strategy == "fsdp" else 1)


def communication_seconds(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, traffic: TrafficPattern = "ring"
) -> float:
    """Return the seconds of a step's collectives: bytes over link rate, plus latency (Hockney's model)."""
    return link_bytes(exchange, cluster, traffic) / rate_B_per_s + latency_seconds(exchange, cluster)


def step_seconds(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, compute_s: float, assumed: Assumption
) -> float:
    """Return the seconds per step: computation plus communication, or the longer where they overlap."""
    communication_s = communication_seconds(exchange, cluster, rate_B_per_s, assumed.traffic)
    if assumed.overlap == "perfect":
        return max(compute_s, communication_s)
    return compute_s + communication_s


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


def speedup_bounds(
    exchange: Exchange, cluster: Cluster, slow_B_per_s: float, fast_B_per_s: float, fast_step_s: float
) -> BestAndWorstCase:
    """Return the speed-up of the fast link over the slow one, given one step measured on the fast link.

    In the best case a slow link costs least, so `at_best` is the smaller speed-up.
    """
    compute_s = compute_left(exchange, cluster, fast_B_per_s, fast_step_s)
    slow_s = step_bounds(exchange, cluster, slow_B_per_s, compute_s)
    return BestAndWorstCase(slow_s.at_best / fast_step_s, slow_s.at_worst / fast_step_s)


def step_flop(parameters: float, tokens_per_gpu: float) -> float:
    """Return the model FLOP of one GPU per step: 6 per parameter and token.

    Kaplan et al., arXiv 2001.08361, section 2.1. Attention scores are left out, which are few where the
    sequence is short compared with the hidden size, and so is what activation checkpointing recomputes.
    """
    return (FORWARD_FLOP + BACKWARD_FLOP) * parameters * tokens_per_gpu


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
