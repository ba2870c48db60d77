"""Seconds of collectives, of what overlaps them and of operators by a roofline, as arrays.

GPUs share a fast link within a node, and a slower one between nodes. Formulas are those of reduce-scatter and
all-gather by halves (Thakur et al., IJHPCA 2005): first within each node, then between nodes, where each GPU
sends the part that it has. An all-reduce is both in turn.

Traffic between nodes is also counted by strategy and pattern: each node has one full-duplex link, whose rate
and bytes are those of one direction, which are equal in both. Links inside a node then cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.transformer import TRAINING_FLOP

Floats = NDArray[np.float64]

Amount = float | Floats
"""One number, or one per layout."""


class NodeLinks(NamedTuple):
    """What connects the GPUs. Rates are per GPU and direction."""

    node_size: Amount  # GPUs that share the fast link
    node_B_per_s: Amount
    network_B_per_s: Amount
    collective_s: Amount  # of any collective, before its first hop
    node_hop_s: Amount
    network_hop_s: Amount


class Seconds(NamedTuple):
    """The seconds of bytes on links, which computation can hide, and those of latency, which it cannot."""

    bytes_s: Floats
    latency_s: Floats

    def times(self, count: Amount) -> Seconds:
        """Return the seconds of so many in turn."""
        return Seconds(self.bytes_s * count, self.latency_s * count)

    def plus(self, other: Seconds) -> Seconds:
        """Return the seconds of both in turn."""
        return Seconds(self.bytes_s + other.bytes_s, self.latency_s + other.latency_s)


def passed_share(parts: Amount) -> Amount:
    """Return the share of an all-gather's bytes that each of so many ranks or nodes has to receive.

    All but its own part: (parts - 1) / parts, the least of any algorithm, which rings and halving both reach.
    """
    return (parts - 1) / parts


def nothing_s(like: Floats) -> Seconds:
    """Return the seconds of ranks that exchange nothing."""
    return Seconds(np.zeros_like(like), np.zeros_like(like))


def ranks_in_node(group: Floats, inner: Floats, node_size: Amount) -> Floats:
    """Return how many ranks of each group share a node: all where they fit, else a power of two.

    `inner`: how many GPUs lie between two ranks that follow one another in the group.
    """
    room = np.maximum(node_size / inner, 1.0)
    near: Floats = np.where(group <= room, group, np.exp2(np.floor(np.log2(room) + 1e-9)))
    return near


def gather_s(size_B: Floats, group: Floats, inner: Floats, links: NodeLinks) -> Seconds:
    """Return the seconds of an all-gather to `size_B` bytes per rank, or of a reduce-scatter from them."""
    near = ranks_in_node(group, inner, links.node_size)
    nodes = group / near
    within_B = size_B * passed_share(near)
    between_B = size_B / near * passed_share(nodes)
    hops_s = np.log2(near) * links.node_hop_s + np.log2(nodes) * links.network_hop_s
    return Seconds(
        within_B / links.node_B_per_s + between_B / links.network_B_per_s,
        np.where(group > 1, links.collective_s + hops_s, 0.0),
    )


def ring_gather_s(size_B: Floats, group: Floats, inner: Floats, links: NodeLinks) -> Seconds:
    """Return the seconds of an all-gather to `size_B` bytes per rank by rings, or of a reduce-scatter.

    As many rings as GPUs of a node have links, each through all ranks: the slowest link bounds all, and the
    latency is that of every node in turn (NCCL's ring algorithm; nccl-tests, PERFORMANCE.md).
    """
    near = ranks_in_node(group, inner, links.node_size)
    nodes = group / near
    within_s = size_B * passed_share(group) / links.node_B_per_s
    between_s = size_B / near * passed_share(group) / links.network_B_per_s
    hops_s = (near - 1) * links.node_hop_s + (nodes - 1) * links.network_hop_s
    return Seconds(
        np.where(nodes > 1, np.maximum(within_s, between_s), within_s),
        np.where(group > 1, links.collective_s + hops_s, 0.0),
    )


def all_reduce_s(size_B: Floats, group: Floats, inner: Floats, links: NodeLinks) -> Seconds:
    """Return the seconds of an all-reduce of `size_B` bytes: a reduce-scatter and an all-gather."""
    return gather_s(size_B, group, inner, links).times(2)


def all_to_all_s(size_B: Floats, group: Floats, inner: Floats, links: NodeLinks) -> Seconds:
    """Return the seconds of an all-to-all in which each rank has `size_B` bytes for its group."""
    near = ranks_in_node(group, inner, links.node_size)
    within_s = size_B * (near - 1) / group / links.node_B_per_s
    between_s = size_B * (group - near) / group / links.network_B_per_s
    hop_s = np.where(near < group, links.network_hop_s, links.node_hop_s)
    return Seconds(within_s + between_s, np.where(group > 1, links.collective_s + hop_s, 0.0))


def send_s(size_B: Floats, links: NodeLinks) -> Seconds:
    """Return the seconds to send `size_B` bytes to a GPU of another node."""
    return Seconds(size_B / links.network_B_per_s, np.full_like(size_B, links.network_hop_s))


def overlapped_s(one_s: Amount, other_s: Amount, exposed: Amount) -> Floats:
    """Return the seconds of both, where the longer hides all but a share `exposed` of the shorter.

    exposed 1: one after the other. exposed 0: the longer alone. exposed 1 / chunks: a pipeline of two stages,
    of which the first chunk of the shorter is not hidden.
    """
    both_s: Floats = np.maximum(one_s, other_s) + exposed * np.minimum(one_s, other_s)
    return both_s


def bubble_s(stages: Amount, stages_per_rank: Amount, micro_batch_s: Floats) -> Floats:
    """Return the seconds in which a rank of a pipeline waits in a step of 1F1B.

    (p - 1) / v micro-batches: Narayanan et al., arXiv 2104.04473, section 2.2.2.
    """
    return (stages - 1) / stages_per_rank * micro_batch_s


def training_flop(parameters: Amount, tokens: Amount) -> Amount:
    """Return the model FLOP of a step on `tokens` tokens: 6 per parameter and token.

    Kaplan et al., arXiv 2001.08361, section 2.1. Attention scores are left out, which are few where the
    sequence is short compared with the hidden size, and so is what activation checkpointing recomputes.
    """
    return TRAINING_FLOP * parameters * tokens


def roofline_s(
    flop: Amount,
    peak_FLOP_per_s: float,
    efficiency: float,
    moved_B: Amount = 0.0,
    memory_B_per_s: float = 1.0,
) -> Amount:
    """Return the seconds of an operator: its FLOP at the peak or its bytes at the memory's rate.

    The longer of both counts, over the share `efficiency` of both rates that it reaches (Williams et al.,
    Roofline, CACM 2009).
    """
    longer_s: Amount = np.maximum(flop / peak_FLOP_per_s, moved_B / memory_B_per_s)
    return longer_s / efficiency


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
