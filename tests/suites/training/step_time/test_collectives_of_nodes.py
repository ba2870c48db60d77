"""Seconds and bytes of collectives and of bubbles, each compared with a second way of getting them."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from suites.training.step_time import collectives
from suites.training.step_time.collectives import (
    Cluster,
    Exchange,
    NodeLinks,
    all_to_all_s,
    gather_s,
    link_bytes,
    ring_gather_s,
)
from suites.training.step_time.timeline import stepped

LINKS = NodeLinks(8, 450e9, 50e9, 7e-6, 1e-6, 5e-6)


def seconds(collective, *sizes, links=LINKS):
    """Return a collective's seconds of bytes and of latency."""
    found = collective(*(np.array([float(size)]) for size in sizes), links)
    return float(found.bytes_s[0]), float(found.latency_s[0])


def test_an_all_gather_receives_its_own_part_from_other_nodes_and_the_rest_within():
    """Of 1,024 bytes; nodes exchange first, then the ranks of each node."""
    for group, node, within, between in (
        (8, 8, 896, 0),
        (64, 8, 896, 112),
        (16, 1, 0, 960),
        (32, 4, 768, 224),
    ):
        links = NodeLinks(node, 450e9, 50e9, 0.0, 0.0, 0.0)
        expected_s = within / 450e9 + between / 50e9
        assert seconds(gather_s, 1024, group, 1, links=links) == pytest.approx((expected_s, 0))


def test_hops_count_once_each_way_and_one_rank_sends_nothing():
    """32 ranks in nodes of 8: three hops within and two between."""
    bytes_s, latency_s = seconds(gather_s, 8, 32, 1)
    assert latency_s == pytest.approx(7e-6 + 3e-6 + 10e-6)
    assert seconds(collectives.all_reduce_s, 8, 32, 1) == pytest.approx((2 * bytes_s, 2 * latency_s))
    for collective in (gather_s, collectives.all_reduce_s, all_to_all_s, ring_gather_s):
        assert seconds(collective, 8, 1, 4) == (0, 0)


def test_ranks_in_a_node_are_a_power_of_two_that_fits():
    for group, inner, node, near in (
        *((8, 1, 8, 8), (16, 1, 8, 8), (4, 4, 8, 2), (4, 8, 8, 1), (4, 16, 8, 1)),
        *((64, 1, 72, 64), (128, 2, 72, 32), (2, 1, 1, 1)),
    ):
        assert collectives.ranks_in_node(np.array([group]), np.array([inner]), node)[0] == near


def test_an_all_to_all_keeps_what_a_rank_has_for_itself_and_a_send_crosses_the_network():
    """16 ranks in nodes of 8: of 16 parts one stays, 7 go to the node, 8 leave it."""
    assert seconds(all_to_all_s, 16e9, 16, 1) == pytest.approx((7e9 / 450e9 + 8e9 / 50e9, 7e-6 + 5e-6))
    assert seconds(all_to_all_s, 1, 8, 1)[1] == pytest.approx(8e-6)
    assert seconds(collectives.send_s, 50e9) == (1.0, 5e-6)


def test_rings_have_the_bytes_and_hops_of_their_closed_formulas():
    """nccl-tests, PERFORMANCE.md: between nodes, each GPU has its own ring."""
    links = NodeLinks(8.0, 300e9, 20e9, 1e-5, 1e-6, 2e-5)
    for group, inner, bytes_s, latency_s in (
        (8, 1, 1e9 * 7 / 8 / 300e9, 1e-5 + 7e-6),
        (32, 1, 1e9 / 8 * 31 / 32 / 20e9, 1e-5 + 7e-6 + 3 * 2e-5),
        (4, 8, 1e9 * 3 / 4 / 20e9, 1e-5 + 3 * 2e-5),  # a node apart, they share no fast link
    ):
        assert seconds(ring_gather_s, 1e9, group, inner, links=links) == pytest.approx((bytes_s, latency_s))


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 2), (4, 4), (4, 9), (8, 16)])
def test_the_bubble_is_that_of_1f1b_stepped_through(stages, micro_batches):
    stepped_s = max(one.end_s for one in stepped([1.0] * stages, [2.0] * stages, micro_batches))
    assert stepped_s == pytest.approx(micro_batches * 3.0 + collectives.bubble_s(stages, 1, np.array(3.0)))


BY_CLUSTER = pytest.mark.parametrize(
    "cluster", [Cluster(n, g) for n, g in product((1, 2, 3, 4), (1, 2, 4))], ids=str
)
FORWARD, BACKWARD = {"element_B": 0.5, "gradient_B": 0.0}, {"element_B": 0.0, "gradient_B": 1.0}
"""Two gathers of half a byte, or one reduce-scatter of one."""


class Ranks:
    """Ranks of a cluster: the chunks that each holds, and those that crossed a node's boundary."""

    def __init__(self, cluster):
        self.cluster, self.every = cluster, set(range(cluster.gpus))
        self.held = [{rank} for rank in range(cluster.gpus)]
        self.crossings = Counter()
        size, nodes = cluster.gpus_per_node, range(cluster.nodes)
        self.of_nodes = [list(range(node * size, (node + 1) * size)) for node in nodes]
        self.peers = [[node * size + peer for node in nodes] for peer in range(size)]

    def gather(self, ring):
        """Pass on what each rank of `ring` got last, until all have all."""
        newest = {rank: sorted(self.held[rank]) for rank in ring}
        for _ in range(len(ring) - 1):
            arriving = {}
            for rank, following in zip(ring, [*ring[1:], ring[0]], strict=True):
                sender, receiver = (one // self.cluster.gpus_per_node for one in (rank, following))
                if sender != receiver:
                    self.crossings["from", sender] += len(newest[rank])
                    self.crossings["into", receiver] += len(newest[rank])
                arriving[following] = newest[rank]
            newest = arriving
            for rank, chunks in newest.items():
                assert self.held[rank].isdisjoint(chunks)
                self.held[rank].update(chunks)

    def crossed(self):
        """Return the chunks that crossed a node's boundary; fails unless they are as many for all."""
        counts = {self.crossings[way, node] for way in ("from", "into") for node in range(self.cluster.nodes)}
        assert len(counts) == 1
        return counts.pop()


@BY_CLUSTER
def test_rings_and_gathers_between_nodes_first_send_what_their_bounds_say(cluster):
    for bound, rings in (
        ("ring", lambda of: [sorted(of.every)]),
        ("node_aware", lambda of: of.peers + of.of_nodes),
    ):
        ranks = Ranks(cluster)
        for ring in rings(ranks):
            ranks.gather(ring)
        assert all(one == ranks.every for one in ranks.held)
        for way in (FORWARD, BACKWARD):
            exchange = Exchange(cluster.gpus, **way)
            assert ranks.crossed() == pytest.approx(link_bytes(exchange, cluster, bound))


@BY_CLUSTER
def test_hybrid_sharding_sends_what_its_formula_says(cluster):
    """Reduce-scatter in each node, then each GPU's shard all-reduced with its peers in the other nodes."""
    ranks, nodes = Ranks(cluster), cluster.nodes
    for peer, ring in enumerate(ranks.peers):
        shard = range(peer * nodes, (peer + 1) * nodes)
        for _ in ("reduce-scatter", "all-gather"):
            for rank, chunk in zip(ring, shard, strict=True):
                ranks.held[rank] = {chunk}
            ranks.gather(ring)
        assert all(ranks.held[rank] == set(shard) for rank in ring)
    exchange = Exchange(cluster.gpus, "hybrid", element_B=1.0)
    for bound in ("ring", "node_aware"):
        assert ranks.crossed() == pytest.approx(link_bytes(exchange, cluster, bound))
