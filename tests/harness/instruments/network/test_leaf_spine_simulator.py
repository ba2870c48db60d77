"""Max-min fair shares and collectives: closed formulas, exact fractions, steps, and Meta's zone."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_zone import meta_zone

from harness.instruments.network import clos as placements
from harness.instruments.network import routing
from harness.instruments.network.clos import IN_RACK, Clos
from harness.instruments.network.flow_simulator import crossings, shares, simulate, simulate_routed
from harness.instruments.network.routing import ALONE, ECMP, Flows, RoutingPolicy, flows_of


def crossed(*ways):
    """Return entities by their links, a link as often as it is crossed."""
    longest = max(map(len, ways))
    return crossings(np.array([[*way, *[IN_RACK] * (longest - len(way))] for way in ways]))


networks = st.integers(1, 5).flatmap(
    lambda links: st.tuples(
        st.lists(st.integers(1, 12), min_size=links, max_size=links),
        st.lists(st.lists(st.integers(0, links - 1), min_size=1, max_size=4), min_size=1, max_size=7),
    )
)
"""Capacities, and the links of each entity, some of them several times."""


@given(networks)
def test_shares_are_those_of_filling_one_link_at_a_time(network):
    capacity, ways = network
    left, rate = [Fraction(one) for one in capacity], {}
    while len(rate) < len(ways):
        waiting = {entity: way for entity, way in enumerate(ways) if entity not in rate}
        weight = [sum(way.count(link) for way in waiting.values()) for link in range(len(capacity))]
        share, narrow = min((left[link] / one, link) for link, one in enumerate(weight) if one)
        for entity, way in waiting.items():
            if narrow in way:
                rate[entity] = share
                for link in way:
                    left[link] -= share
    expected = [float(rate[entity]) for entity in range(len(ways))]
    assert shares(crossed(*ways), np.array(capacity, float)) == pytest.approx(expected, rel=1e-8)


PINNED, CENTRAL = RoutingPolicy("pinned"), RoutingPolicy("central")
NIC = 5e10


def e_ecmp(pairs, split=False):
    return RoutingPolicy(hash_ports=True, queue_pairs=pairs, split=split)


KINDS = st.sampled_from(["allreduce", "alltoall"])
POLICIES = [ECMP, RoutingPolicy(queue_pairs=4), e_ecmp(4), e_ecmp(16, split=True), PINNED, CENTRAL]


def place(clos, hosts, gpus, seed):
    return placements.place(clos, "shuffled", hosts * gpus, gpus, seed)


def stepped_s(clos, flows, spine_F):
    """Return when the last ring, or flow outside of rings, has ended; shares change as each ends."""
    own_F = np.where(flows.ring == ALONE, -1 - np.arange(len(flows.ring)), flows.ring)
    entities, first, count = np.unique(own_F, return_index=True, return_counts=True)
    path_FJ = clos.paths(flows.source, flows.destination, spine_F)
    path_EJ = path_FJ[np.argsort(own_F, kind="stable")].reshape(len(entities), 4 * count[0])
    left_B, now_s = flows.size_B[first], 0.0
    while left_B.size:
        end_s = left_B / shares(crossings(path_EJ), clos.capacities())
        now_s += end_s.min()
        runs = end_s > end_s.min() * (1 + 1e-9)
        left_B, path_EJ = (left_B * (1 - end_s.min() / end_s))[runs], path_EJ[runs]
    return now_s


@settings(max_examples=60)
@given(KINDS, st.integers(2, 6), st.sampled_from([1, 2, 4]), st.sampled_from(POLICIES), st.integers(0, 99))
def test_the_formula_gives_what_steps_give_and_no_byte_is_lost(kind, hosts, gpus, policy, seed):
    """Over rings in lockstep and flows alone, on a fabric whose uplinks and NICs may each be the narrow
    ones."""
    uplink, failed = 1.0 + seed % 3, seed % 2
    clos = Clos(4, 4, 3, 2.0, uplink, failed=((1, 2),) if failed else ())
    nic_HG = place(clos, min(hosts, 16 // gpus), gpus, seed)
    found = simulate(clos, nic_HG, kind, 12.0, policy, seed)
    flows = flows_of(kind, nic_HG, 12.0, policy.queue_pairs)
    spine_F = routing.choose_spines(flows, clos, policy, seed)
    assert stepped_s(clos, flows, spine_F) == pytest.approx(found.time_s)
    alone = flows._replace(ring=np.full(len(flows.ring), ALONE))  # no lockstep: no difference to the end
    assert stepped_s(clos, alone, spine_F) == pytest.approx(found.time_s)
    routed = simulate_routed(clos, kind, nic_HG.size, 12.0, flows, spine_F)
    assert routed.time_s == pytest.approx(found.time_s)
    np.testing.assert_allclose(routed.load_B, found.load_B)

    assert 0 < found.of_bound <= 1 + 1e-9
    assert found.max_over_mean >= 1 - 1e-9
    out, back, sent = Counter(), Counter(), Counter()
    for source, other, size_B, _, _ in zip(*flows, strict=True):
        sent[source] += size_B
        if source // 4 != other // 4:
            out[source // 4] += size_B
            back[other // 4] += size_B
    for rack in range(4):
        assert np.nansum(found.load_B[0, rack]) == pytest.approx(out[rack])
        assert np.nansum(found.load_B[1, rack]) == pytest.approx(back[rack])
    busiest = max(max(out[rack], back[rack]) / (3 - (failed and rack == 1)) for rack in range(4))
    assert found.uplink_bound_s == pytest.approx(busiest / uplink)
    assert found.nic_bound_s == pytest.approx(max(sent.values()) / 2.0)
    assert np.isnan(found.load_B).sum() == 2 * failed


def test_messages_in_turn_take_their_queue_pairs_one_turn_after_another():
    """Two turns of eight, each as long as its fullest link; what is split over sixteen is never slower."""
    zone, seed = meta_zone(), 0
    nic_HG = place(zone, 16, 8, seed)
    flows = flows_of("allreduce", nic_HG, 1e9, 16)
    spine_F = routing.choose_spines(flows, zone, e_ecmp(16), seed)
    turns_s = [
        stepped_s(zone, Flows(*(column[rows] for column in flows)), spine_F[rows])
        for rows in (flows.queue_pair < 8, flows.queue_pair >= 8)
    ]
    found = simulate(zone, nic_HG, "allreduce", 1e9, e_ecmp(16), seed)
    assert found.time_s == pytest.approx(sum(turns_s))
    routed = simulate_routed(zone, "allreduce", 128, 1e9, flows, spine_F, turns=2)
    assert routed.time_s == pytest.approx(found.time_s)
    split = simulate(zone, nic_HG, "allreduce", 1e9, e_ecmp(16, split=True), seed)
    assert split.time_s < found.time_s
    np.testing.assert_allclose(split.load_B, found.load_B)


def test_messages_of_a_ring_go_in_turns_beyond_eight_queue_pairs():
    assert [e_ecmp(pairs).turns("allreduce") for pairs in (8, 16, 64)] == [1, 2, 8]
    assert e_ecmp(16).turns("alltoall") == e_ecmp(16, split=True).turns("allreduce") == 1


def test_pins_are_perfect_where_ranks_are_aligned_and_collide_where_they_are_not():
    """Two hosts of a rack that send to hosts of one place in theirs share eight spines."""
    zone, ranks = meta_zone(), 1024
    found = simulate(zone, placements.place(zone, "aligned", ranks, 8, 0), "allreduce", 1e9, PINNED)
    assert found.of_bound == pytest.approx(1)
    assert found.bus_B_per_s == pytest.approx(8 * NIC)
    assert found.time_s == pytest.approx(2 * (ranks - 1) / ranks * 1e9 / 8 / NIC)
    assert simulate(zone, place(zone, 128, 8, 0), "allreduce", 1e9, PINNED).of_bound == pytest.approx(0.5)
    in_one_rack = simulate(zone, placements.place(zone, "aligned", 16, 8, 0), "allreduce", 1e9, ECMP)
    assert (in_one_rack.max_over_mean, in_one_rack.uplink_bound_s) == (1, 0)
