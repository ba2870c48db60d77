"""Seconds of collectives as arrays: GPUs share a fast link within a node, and a slower one between nodes.

Formulas are those of reduce-scatter and all-gather by halves (Thakur et al., IJHPCA 2005): first within each
node, then between nodes, where each GPU sends the part that it has. An all-reduce is both in turn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
