"""Collectives on a simulated fabric: closed formulas, steps in place of the formula, Meta's zone."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_zone import meta_zone

from harness.instruments.network import clos as placements
from harness.instruments.network import flow_simulator, routing
from harness.instruments.network.clos import Clos
from harness.instruments.network.flow_simulator import simulate
from harness.instruments.network.routing import ALONE, ECMP, Flows, RoutingPolicy, flows_of

PINNED, CENTRAL = RoutingPolicy("pinned"), RoutingPolicy("central")
POLICIES = [
    ECMP,
    RoutingPolicy(queue_pairs=4),
    RoutingPolicy(hash_ports=True, queue_pairs=4),
    RoutingPolicy(hash_ports=True, queue_pairs=16, split=True),
    PINNED,
    CENTRAL,
]
KINDS = st.sampled_from(["allreduce", "alltoall"])

NIC = 5e10


def e_ecmp(pairs):
    return RoutingPolicy(hash_ports=True, queue_pairs=pairs)


def place(clos, hosts, gpus, seed):
    return placements.shuffled(placements.fragmented(clos, hosts, gpus, seed), seed)


@settings(max_examples=60)
@given(KINDS, st.integers(2, 6), st.sampled_from([1, 2, 4]), st.sampled_from(POLICIES), st.integers(0, 99))
def test_the_formula_says_what_steps_say(kind, hosts, gpus, policy, seed):
    """Over rings in lockstep and flows alone, on a fabric whose uplinks and NICs may each be the narrow
    ones."""
    clos = Clos(4, 4, 3, 2.0, 1.0 + seed % 3, failed=((1, 2),) if seed % 2 else ())
    nic_HG = place(clos, min(hosts, 16 // gpus), gpus, seed)
    found = simulate(clos, nic_HG, kind, 12.0, policy, seed)
    flows = flows_of(kind, nic_HG, 12.0, policy.queue_pairs)
    spine_F = routing.choose_spines(flows, clos, policy, seed)
    assert flow_simulator.stepped_s(clos, flows, spine_F, 0.0).max() == pytest.approx(found.time_s)
    alone = flows._replace(ring=np.full(len(flows.ring), ALONE))  # no lockstep: no difference to the end
    assert flow_simulator.stepped_s(clos, alone, spine_F, 0.0).max() == pytest.approx(found.time_s)
    routed = flow_simulator.simulate_routed(clos, kind, nic_HG.size, 12.0, flows, spine_F)
    assert routed.time_s == pytest.approx(found.time_s)
    np.testing.assert_allclose(routed.load_B, found.load_B)


@settings(max_examples=60)
@given(KINDS, st.integers(2, 8), st.sampled_from(POLICIES), st.integers(0, 99))
def test_nothing_beats_the_bounds_and_no_byte_is_lost(kind, hosts, policy, seed):
    clos = Clos(5, 4, 3, 2.0, 1.5, failed=((1, 2),) if seed % 2 else ())
    nic_HG = place(clos, hosts, 2, seed)
    found = simulate(clos, nic_HG, kind, 12.0, policy, seed)
    assert 0 < found.of_bound <= 1 + 1e-9
    assert found.max_over_mean >= 1 - 1e-9
    out, back, sent = Counter(), Counter(), Counter()
    for source, other, size_B, _, _ in zip(*flows_of(kind, nic_HG, 12.0), strict=True):
        sent[source] += size_B
        if source // 4 != other // 4:
            out[source // 4] += size_B
            back[other // 4] += size_B
    for rack in range(5):
        assert np.nansum(found.load_B[0, rack]) == pytest.approx(out[rack])
        assert np.nansum(found.load_B[1, rack]) == pytest.approx(back[rack])
    live = {rack: 3 - (seed % 2 and rack == 1) for rack in range(5)}
    busiest = max(max(out[rack], back[rack]) / live[rack] for rack in range(5)) / 1.5
    assert found.uplink_bound_s == pytest.approx(busiest)
    assert found.nic_bound_s == pytest.approx(max(sent.values()) / 2.0)
    assert np.isnan(found.load_B).sum() == 2 * (seed % 2)


def test_messages_in_turn_take_their_queue_pairs_one_turn_after_another():
    """Two turns of eight, each as long as its fullest link; what is split over sixteen is never slower."""
    zone = meta_zone()
    for seed in range(5):
        nic_HG = place(zone, 16, 8, seed)
        flows = flows_of("allreduce", nic_HG, 1e9, 16)
        spine_F = routing.choose_spines(flows, zone, e_ecmp(16), seed)
        turns_s = [
            flow_simulator.stepped_s(
                zone, Flows(*(column[rows] for column in flows)), spine_F[rows], 0.0
            ).max()
            for rows in (flows.queue_pair < 8, flows.queue_pair >= 8)
        ]
        found = simulate(zone, nic_HG, "allreduce", 1e9, e_ecmp(16), seed)
        assert found.time_s == pytest.approx(sum(turns_s))
        routed = flow_simulator.simulate_routed(zone, "allreduce", 128, 1e9, flows, spine_F, turns=2)
        assert routed.time_s == pytest.approx(found.time_s)
        split = simulate(zone, nic_HG, "allreduce", 1e9, replace(e_ecmp(16), split=True), seed)
        assert split.time_s < found.time_s
        np.testing.assert_allclose(split.load_B, found.load_B)


@pytest.mark.parametrize(("kind", "pairs"), [("allreduce", 8), ("alltoall", 16)])
def test_where_all_queue_pairs_are_in_use_at_once_splitting_changes_nothing(kind, pairs):
    zone = meta_zone()
    nic_HG, policy = place(zone, 16, 8, 3), e_ecmp(pairs)
    in_turn, split = (
        simulate(zone, nic_HG, kind, 1e9, one, 3) for one in (policy, replace(policy, split=True))
    )
    assert in_turn.time_s == split.time_s


def test_turns_of_unequal_queue_pairs_are_refused():
    with pytest.raises(ValueError, match=r"^12 queue pairs: expected at most 8, or a multiple of it$"):
        e_ecmp(12).turns("allreduce")


@pytest.mark.parametrize("hosts", [16, 128])
def test_pins_are_perfect_where_ranks_are_aligned(hosts):
    zone = meta_zone()
    found = simulate(zone, placements.aligned(zone, hosts, 8), "allreduce", 1e9, PINNED)
    assert found.of_bound == pytest.approx(1)
    assert found.bus_B_per_s == pytest.approx(8 * NIC)
    ranks = 8 * hosts
    assert found.time_s == pytest.approx(2 * (ranks - 1) / ranks * 1e9 / 8 / NIC)


def test_pins_collide_where_ranks_are_not_in_the_order_of_racks():
    """Two hosts of a rack that send to hosts of one place in theirs share eight spines."""
    zone = meta_zone()
    found = simulate(zone, place(zone, 128, 8, 0), "allreduce", 1e9, PINNED)
    assert found.of_bound == pytest.approx(0.5)
    twice = simulate(meta_zone(2.0), place(zone, 128, 8, 0), "allreduce", 1e9, PINNED)
    assert twice.bus_B_per_s == pytest.approx(8 * NIC)  # the stop-gap


def test_all_to_all_has_the_bound_of_its_nics():
    """Hosts of a rack each: a NIC sends S/N to all but the 8 ranks of its host."""
    zone, hosts = meta_zone(), 12
    nic_HG = placements.aligned(zone, 2 * hosts, 8)[::2]
    found = simulate(zone, nic_HG, "alltoall", 1e9, PINNED)
    ranks = 8 * hosts
    assert found.nic_bound_s == pytest.approx((ranks - 8) / ranks * 1e9 / NIC)
    assert found.time_s == pytest.approx(found.nic_bound_s)


def test_one_spine_carries_all_there_is():
    clos = Clos(2, 4, 1, 10.0, 4.0)
    found = simulate(clos, np.arange(8).reshape(8, 1), "alltoall", 8.0, ECMP)
    assert found.time_s == pytest.approx(4 * 4 * 1.0 / 4.0)  # 16 flows of a byte each way
    assert found.of_bound == pytest.approx(1)


def test_within_one_rack_there_is_nothing_to_balance():
    zone = meta_zone()
    found = simulate(zone, placements.aligned(zone, 2, 8), "allreduce", 1e9, ECMP)
    assert found.max_over_mean == 1
    assert found.uplink_bound_s == 0
    assert found.of_bound == pytest.approx(1)


def test_more_queue_pairs_at_once_come_closer_to_the_bound():
    zone = meta_zone()

    def mean(policy):
        return np.mean(
            [simulate(zone, place(zone, 64, 8, s), "allreduce", 1e9, policy, s).of_bound for s in range(10)]
        )

    split = [mean(replace(e_ecmp(pairs), split=True)) for pairs in (1, 4, 8, 16, 32)]
    assert split == sorted(split)
    eight, thirty_two = mean(e_ecmp(8)), mean(e_ecmp(32))
    assert eight == split[2]
    assert thirty_two == pytest.approx(eight, rel=0.05)  # in turn no more than eight are in use at once
    one = [simulate(zone, place(zone, 64, 8, s), "allreduce", 1e9, ECMP, s).of_bound for s in range(10)]
    many = [
        simulate(zone, place(zone, 64, 8, s), "allreduce", 1e9, RoutingPolicy(queue_pairs=32), s).of_bound
        for s in range(10)
    ]
    assert one == many  # a hash of addresses sees no queue pairs


def test_failed_links_narrow_the_bound_and_cost_time():
    zone = meta_zone()
    nic_HG = placements.aligned(zone, 64, 8)
    failed = tuple((rack, spine) for rack in range(4) for spine in range(12))
    cut = meta_zone(failed=failed)
    whole, less = (simulate(one, nic_HG, "allreduce", 1e9, CENTRAL) for one in (zone, cut))
    assert less.uplink_bound_s == pytest.approx(4 * whole.uplink_bound_s)  # 4 of 16 uplinks are left
    assert less.bound_s == pytest.approx(less.uplink_bound_s)
    assert less.time_s >= less.bound_s > whole.time_s


def test_the_same_seed_gives_the_same_result():
    zone = meta_zone()
    one, again, other = (
        simulate(zone, place(zone, 32, 8, 1), "allreduce", 1e9, e_ecmp(4), seed).load_B for seed in (1, 1, 2)
    )
    assert (one == again).all()
    assert (one != other).any()


@pytest.mark.parametrize(
    ("kind", "hosts", "size", "policy", "said"),
    [
        ("allreduce", 1, 1.0, ECMP, "no flows"),
        ("allreduce", 2, 0.0, ECMP, "no flows"),
        ("gather", 2, 1.0, ECMP, "no collective 'gather'"),
        ("allreduce", 2, 1.0, RoutingPolicy(queue_pairs=0), "at least one queue pair"),
        ("allreduce", 2, 1.0, RoutingPolicy("spray"), "no routing 'spray'"),
    ],
)
def test_what_cannot_be_simulated_is_refused(kind, hosts, size, policy, said):
    clos = Clos(2, 4, 2, 1.0, 1.0)
    with pytest.raises(ValueError, match=said):
        simulate(clos, np.arange(2 * hosts).reshape(hosts, 2), kind, size, policy)


def test_flows_of_unequal_bytes_are_stepped_not_summed():
    clos = Clos(2, 2, 1, 10.0, 4.0)
    flows = Flows(
        np.array([0, 1]), np.array([2, 3]), np.array([4.0, 8.0]), np.full(2, ALONE), np.zeros(2, int)
    )
    with pytest.raises(ValueError, match="equal bytes"):
        flow_simulator.simulate_routed(clos, "alltoall", 2, 1.0, flows, np.zeros(2, int))
    assert flow_simulator.stepped_s(clos, flows, np.zeros(2, int), 0.0) == pytest.approx([2.0, 3.0])
