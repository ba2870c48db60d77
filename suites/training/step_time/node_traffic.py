"""What data-parallel training sends between nodes, in bytes and seconds, by strategy and traffic pattern.

Each node has one full-duplex link. Its rate and its bytes are those of one direction, which are equal in
both. Links inside a node are assumed to cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from suites.training.step_time.collectives import passed_share

Strategy = Literal["fsdp", "ddp", "hybrid"]
"""fsdp: all states are sharded over all GPUs (ZeRO-3). ddp: nothing is sharded. hybrid: states are sharded
within a node and replicated across nodes."""

TrafficPattern = Literal["ring", "node_aware"]
"""How a collective crosses between nodes: see `crossing_share`."""


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
    return float(passed_share(cluster.gpus if traffic == "ring" else cluster.nodes))


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
