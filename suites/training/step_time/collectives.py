"""Seconds of collectives as arrays: GPUs share a fast link within a node, and a slower one between nodes.

Formulas are those of reduce-scatter and all-gather by halves (Thakur et al., IJHPCA 2005): first within each
node, then between nodes, where each GPU sends the part that it has. An all-reduce is both in turn.

How computation and communication share time: overlap, and the bubble of a pipeline.

Seconds of single operators against a roofline, and the FLOP of a training step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.transformer.flop import TRAINING_FLOP

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


def overlapped_s(one_s: Amount, other_s: Amount, exposed: float) -> Floats:
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
