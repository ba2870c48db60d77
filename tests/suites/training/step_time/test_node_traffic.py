"""The bytes of the closed formulas, compared with those counted on simulated collectives.

Each rank's chunks move as a ring or a tree of rings moves them, one byte a chunk.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest

from suites.training.step_time.collectives import Cluster, Exchange, link_bytes

Crossings = tuple[Counter[int], Counter[int]]  # chunks that left a node, chunks that came into it


def pass_on(node_of: Sequence[int], sender: int, receiver: int, crossings: Crossings) -> None:
    if node_of[sender] != node_of[receiver]:
        crossings[0][node_of[sender]] += 1
        crossings[1][node_of[receiver]] += 1


def ring_all_gather(
    held: list[set[int]], ring: list[int], node_of: Sequence[int], crossings: Crossings
) -> None:
    """Pass on what each rank of `ring` got last, until all have all; `held` changes in place."""
    newest = {rank: sorted(held[rank]) for rank in ring}
    for _ in range(len(ring) - 1):
        arriving = {}
        for place, rank in enumerate(ring):
            following = ring[(place + 1) % len(ring)]
            for _chunk in newest[rank]:
                pass_on(node_of, rank, following, crossings)
            arriving[following] = newest[rank]
        newest = arriving
        for rank, chunks in newest.items():
            assert held[rank].isdisjoint(chunks)
            held[rank].update(chunks)


def ring_reduce_scatter(
    sums: list[dict[int, int]],
    ring: list[int],
    parts: list[list[int]],
    node_of: Sequence[int],
    crossings: Crossings,
) -> None:
    """Leave the ring's sum of the chunks in parts[i] at the rank at place i of `ring`."""
    size = len(ring)
    for hop in range(size - 1):
        sent = {}
        for place, rank in enumerate(ring):
            part = parts[(place - hop - 1) % size]
            sent[(place + 1) % size] = {chunk: sums[rank][chunk] for chunk in part}
            for _chunk in part:
                pass_on(node_of, rank, ring[(place + 1) % size], crossings)
        for place, values in sent.items():
            for chunk, value in values.items():
                sums[ring[place]][chunk] += value


def by_nodes(cluster: Cluster) -> list[int]:
    return [rank // cluster.gpus_per_node for rank in range(cluster.gpus)]


def no_crossings() -> Crossings:
    return Counter(), Counter()


def share_counted(crossings: Crossings, cluster: Cluster, chunks: int) -> float:
    """Return the share of `chunks` that crossed a node's boundary; fails unless it is the same for all."""
    counts = {side[node] for side in crossings for node in range(cluster.nodes)}
    assert len(counts) == 1
    return counts.pop() / chunks


SMALL = [Cluster(n, g) for n, g in itertools.product((1, 2, 3, 4), (1, 2, 4))]


@pytest.mark.parametrize("cluster", SMALL, ids=str)
def test_a_ring_all_gather_sends_what_the_ring_bound_says(cluster: Cluster) -> None:
    held, crossings = [{rank} for rank in range(cluster.gpus)], no_crossings()
    ring_all_gather(held, list(range(cluster.gpus)), by_nodes(cluster), crossings)
    assert all(one == set(range(cluster.gpus)) for one in held)
    forward = Exchange(cluster.gpus, element_B=0.5, gradient_B=0.0)  # two gathers of half a byte: one of one
    assert share_counted(crossings, cluster, 1) == pytest.approx(link_bytes(forward, cluster, "ring"))


@pytest.mark.parametrize("cluster", SMALL, ids=str)
def test_a_ring_reduce_scatter_sends_what_the_ring_bound_says(cluster: Cluster) -> None:
    ranks, crossings = range(cluster.gpus), no_crossings()
    sums = [{chunk: 100 * rank + chunk for chunk in ranks} for rank in ranks]
    ring_reduce_scatter(sums, list(ranks), [[chunk] for chunk in ranks], by_nodes(cluster), crossings)
    for rank in ranks:
        assert sums[rank][rank] == sum(100 * other + rank for other in ranks)
    backward = Exchange(cluster.gpus, element_B=0.0, gradient_B=1.0)
    assert share_counted(crossings, cluster, 1) == pytest.approx(link_bytes(backward, cluster, "ring"))


@pytest.mark.parametrize("cluster", SMALL, ids=str)
def test_gathering_between_nodes_first_sends_what_the_node_aware_bound_says(cluster: Cluster) -> None:
    nodes, gpus, node_of = cluster.nodes, cluster.gpus_per_node, by_nodes(cluster)
    held, crossings = [{rank} for rank in range(cluster.gpus)], no_crossings()
    for peer in range(gpus):
        ring_all_gather(held, [node * gpus + peer for node in range(nodes)], node_of, crossings)
    for node in range(nodes):
        ring_all_gather(held, list(range(node * gpus, (node + 1) * gpus)), node_of, crossings)
    assert all(one == set(range(cluster.gpus)) for one in held)
    forward = Exchange(cluster.gpus, element_B=0.5, gradient_B=0.0)
    assert share_counted(crossings, cluster, 1) == pytest.approx(link_bytes(forward, cluster, "node_aware"))


@pytest.mark.parametrize("cluster", SMALL, ids=str)
def test_hybrid_sharding_sends_what_its_formula_says_and_ends_with_every_sum(cluster: Cluster) -> None:
    """Reduce-scatter in each node, then each GPU's shard all-reduced with its peers in the other nodes."""
    nodes, gpus, node_of, crossings = cluster.nodes, cluster.gpus_per_node, by_nodes(cluster), no_crossings()
    chunks, ranks = range(cluster.gpus), range(cluster.gpus)
    shards = [list(chunks)[peer * nodes : (peer + 1) * nodes] for peer in range(gpus)]
    sums = [{chunk: 100 * rank + chunk for chunk in chunks} for rank in ranks]
    for node in range(nodes):
        ring_reduce_scatter(sums, list(range(node * gpus, (node + 1) * gpus)), shards, node_of, crossings)
    for peer, shard in enumerate(shards):
        peers = [node * gpus + peer for node in range(nodes)]
        ring_reduce_scatter(sums, peers, [[chunk] for chunk in shard], node_of, crossings)
        held = [set[int]() for _ in ranks]
        for place, rank in enumerate(peers):
            assert sums[rank][shard[place]] == sum(100 * other + shard[place] for other in ranks)
            held[rank] = {shard[place]}
        ring_all_gather(held, peers, node_of, crossings)
        assert all(held[rank] == set(shard) for rank in peers)
    exchange = Exchange(cluster.gpus, "hybrid", element_B=1.0)
    counted = share_counted(crossings, cluster, 1)
    assert counted == pytest.approx(link_bytes(exchange, cluster, "ring"))
    assert counted == pytest.approx(link_bytes(exchange, cluster, "node_aware"))


def test_a_ring_laid_across_nodes_at_every_hop_sends_more_than_the_ring_bound() -> None:
    """As `crossing_share` warns: gpus_per_node times as much, so that bound is one of a well-laid ring."""
    cluster = Cluster(2, 4)
    held, crossings = [{rank} for rank in range(8)], no_crossings()
    ring_all_gather(held, [0, 4, 1, 5, 2, 6, 3, 7], by_nodes(cluster), crossings)
    forward = Exchange(8, element_B=0.5, gradient_B=0.0)
    assert share_counted(crossings, cluster, 1) == pytest.approx(4 * link_bytes(forward, cluster, "ring"))
