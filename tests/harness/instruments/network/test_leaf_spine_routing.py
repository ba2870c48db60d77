"""Which spine flows take: hashes by statistics, pins by hand, the controller one pair at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_zone import meta_zone
from scipy.stats import chisquare

from harness.instruments.network import clos as placements
from harness.instruments.network import routing
from harness.instruments.network.clos import IN_RACK, Clos
from harness.instruments.network.routing import ALONE, Flows, RoutingPolicy, flows_of

ADDRESSES, PORTS, PINNED, CENTRAL = (
    RoutingPolicy(),
    RoutingPolicy(hash_ports=True),
    RoutingPolicy("pinned"),
    RoutingPolicy("central"),
)


def flows_between(source, destination, size_B=1.0, queue_pair=0):
    source = np.asarray(source, dtype=np.int64)
    rows = [
        np.broadcast_to(np.asarray(one), source.shape) for one in (destination, size_B, ALONE, queue_pair)
    ]
    return Flows(source, rows[0].astype(np.int64), rows[1].astype(float), rows[2], rows[3].astype(np.int64))


def random_flows(clos, count, seed=0):
    rng = np.random.default_rng(seed)
    source, far = rng.integers(clos.nics, size=count), rng.integers(1, clos.nics, size=count)
    return flows_between(source, (source + far) % clos.nics, rng.integers(1, 5, size=count))


def per_link(clos, flows, spine_F):
    """Return bytes by (way, rack, spine), one flow at a time."""
    load = np.zeros((2, clos.racks, clos.spines))
    for source, other, size_B, spine in zip(*flows[:3], spine_F, strict=True):
        if source // clos.nics_per_rack != other // clos.nics_per_rack:
            load[0, source // clos.nics_per_rack, spine] += size_B
            load[1, other // clos.nics_per_rack, spine] += size_B
    return load


CLOS = Clos(6, 8, 8, 1.0, 1.0)
DOWN = Clos(6, 8, 8, 1.0, 1.0, failed=((0, 1), (0, 2), (3, 2), (5, 7)))


@pytest.mark.parametrize("policy", [ADDRESSES, PORTS, PINNED, CENTRAL], ids=str)
def test_flows_within_a_rack_need_no_spine_and_others_have_a_live_one(policy):
    flows = random_flows(DOWN, 3000)
    spine_F = routing.choose_spines(flows, DOWN, policy, seed=3)
    for source, other, spine in zip(flows.source, flows.destination, spine_F, strict=True):
        one, two = source // 8, other // 8
        if one == two:
            assert spine == IN_RACK
        else:
            assert 0 <= spine < 8
            assert not {(one, spine), (two, spine)} & set(DOWN.failed)


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="no routing 'adaptive': hash, pinned or central"):
        routing.choose_spines(random_flows(CLOS, 1), CLOS, RoutingPolicy("adaptive"))


@pytest.mark.parametrize("policy", [ADDRESSES, PORTS], ids=str)
def test_a_hash_depends_on_its_seed_alone(policy):
    flows = random_flows(CLOS, 500)
    one, again, other = (routing.choose_spines(flows, CLOS, policy, seed) for seed in (7, 7, 8))
    assert (one == again).all()
    assert np.mean(one != other) > 0.7  # 7 of 8 between racks


def test_hashes_are_what_they_were_published_as():
    """SplitMix64 from state 0: its first outputs, as in the reference implementation's test vector."""
    states = np.array([0, 0x9E3779B97F4A7C15], dtype=np.uint64)
    assert [hex(one) for one in routing._mixed(states)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]


def p_value(spine_F, spines):
    return chisquare(np.bincount(spine_F, minlength=spines)).pvalue


@pytest.mark.parametrize("spines", [3, 4, 16])
def test_addresses_in_a_row_are_spread_as_if_at_random(spines):
    """Chi-square over 200 seeds: p values of a fair hash are uniform, so a handful lie below 0.01."""
    clos, sources = Clos(2, 2000, spines, 1.0, 1.0), np.arange(2000)
    flows = flows_between(sources, 2000 + sources)
    found = [p_value(routing.choose_spines(flows, clos, ADDRESSES, seed), spines) for seed in range(200)]
    assert np.mean(np.array(found) < 0.01) < 0.04
    assert 0.4 < np.mean(found) < 0.6


def test_queue_pairs_of_one_connection_are_spread_by_ports_and_not_by_addresses():
    clos = Clos(2, 1, 16, 1.0, 1.0)
    flows = flows_between(np.zeros(4096), 1, queue_pair=np.arange(4096))
    assert len(set(routing.choose_spines(flows, clos, ADDRESSES, 5))) == 1
    found = [p_value(routing.choose_spines(flows, clos, PORTS, seed), 16) for seed in range(50)]
    assert np.mean(np.array(found) < 0.01) < 0.08


def test_live_spines_share_what_a_failed_one_had():
    clos = Clos(2, 4000, 4, 1.0, 1.0, failed=((1, 2),))
    count = np.bincount(
        routing.choose_spines(flows_between(np.arange(4000), 4000 + np.arange(4000)), clos, ADDRESSES, 1)
    )
    assert count[2] == 0
    assert chisquare(count[[0, 1, 3]]).pvalue > 0.001


def max_over_mean(spine_F, spines):
    count = np.bincount(spine_F, minlength=spines)
    return count.max() / count.mean()


def test_a_thousand_flows_on_sixteen_links_load_the_fullest_over_a_fifth_more():
    """As Gangidi et al. simulated; and as numpy's multinomial has it."""
    clos = Clos(2, 1000, 16, 1.0, 1.0)
    flows = flows_between(np.arange(1000), 1000 + np.arange(1000))
    found = [max_over_mean(routing.choose_spines(flows, clos, ADDRESSES, seed), 16) for seed in range(300)]
    drawn = np.random.default_rng(0).multinomial(1000, [1 / 16] * 16, size=3000).max(axis=1) / (1000 / 16)
    assert np.mean(found) == pytest.approx(drawn.mean(), abs=0.02)
    assert np.quantile(found, 0.1) == pytest.approx(np.quantile(drawn, 0.1), abs=0.03)
    assert np.median(found) > 1.2


def test_imbalance_falls_with_the_number_of_queue_pairs():
    nic_HG = placements.fragmented(meta_zone(), 64, 8, 1)
    mean = []
    for pairs in (1, 4, 16, 64):
        flows, found = flows_of("allreduce", nic_HG, 1.0, pairs), []
        for seed in range(10):
            spine_F = routing.choose_spines(flows, meta_zone(), PORTS, seed)
            load = loaded(meta_zone(), flows, spine_F)
            found.append(load.max() / load[load.sum(axis=2) > 0].mean())
        mean.append(np.mean(found))
    assert mean == sorted(mean, reverse=True)
    assert mean[-1] - 1 < (mean[0] - 1) / 4  # a sum of 64 parts deviates by an eighth


def loaded(clos, flows, spine_F):
    """Return `per_link`, by numpy's own scatter."""
    load = np.zeros((2, clos.racks, clos.spines))
    one, other = flows.source // clos.nics_per_rack, flows.destination // clos.nics_per_rack
    at = one != other
    np.add.at(load, (0, one[at], spine_F[at]), flows.size_B[at])
    np.add.at(load, (1, other[at], spine_F[at]), flows.size_B[at])
    return load


def test_a_pin_is_the_destinations_place_in_its_rack():
    flows = random_flows(CLOS, 500)
    spine_F = routing.choose_spines(flows, CLOS, PINNED)
    between = flows.source // 8 != flows.destination // 8
    assert (spine_F[between] == flows.destination[between] % 8).all()


def test_pins_wrap_where_there_are_fewer_spines_than_nics():
    clos = Clos(2, 8, 3, 1.0, 1.0)
    flows = flows_between(np.arange(8), 8 + np.arange(8))
    assert routing.choose_spines(flows, clos, PINNED).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_pin_whose_route_is_down_is_hashed_over_what_is_left():
    flows = random_flows(DOWN, 3000)
    found, hashed = (routing.choose_spines(flows, DOWN, policy, seed=3) for policy in (PINNED, ADDRESSES))
    moved = set()
    for source, other, spine, said in zip(flows.source, flows.destination, found, hashed, strict=True):
        one, two, own = source // 8, other // 8, other % 8
        if one != two and {(one, own), (two, own)} & set(DOWN.failed):
            assert spine == said
            moved.add((own, spine))
        elif one != two:
            assert spine == own
    assert moved > {(1, 3), (2, 4), (7, 0)}  # from every pin that is down to more than the next


def one_at_a_time(clos, one, other, size_B, order):
    """Return the controller's greedy choice without numpy's help, pair after pair."""
    up, down, chosen = np.zeros((clos.racks, clos.spines)), np.zeros((clos.racks, clos.spines)), {}
    for pair in order:
        a, b = one[pair], other[pair]
        open_ = [s for s in range(clos.spines) if not {(a, s), (b, s)} & set(clos.failed)]
        best = min(open_, key=lambda s: (max(up[a, s], down[b, s]), up[a, s] + down[b, s], s))
        up[a, best] += size_B[pair]
        down[b, best] += size_B[pair]
        chosen[pair] = best
    return chosen


@pytest.mark.parametrize("clos", [CLOS, DOWN], ids=["whole", "failed"])
@pytest.mark.parametrize("seed", range(3))
def test_groups_of_pairs_are_placed_as_one_after_the_other(clos, seed):
    rng = np.random.default_rng(seed)
    one, far, size_B = (
        rng.integers(6, size=300),
        rng.integers(6, size=300),
        rng.integers(1, 4, size=300) * 1.0,
    )
    other = (one + far) % 6
    groups = routing._disjoint_groups(clos, one, other, size_B)
    order = np.concatenate(groups)
    assert sorted(order) == np.flatnonzero(far).tolist()
    assert (np.diff(size_B[order]) <= 0).all()
    for group in groups:
        assert len(set(one[group])) == len(set(other[group])) == len(group)
    expected = one_at_a_time(clos, one, other, size_B, order)
    found = routing._place(clos, one, other, size_B)
    assert {pair: found[pair] for pair in order} == expected


def test_one_route_for_all_queue_pairs_of_a_pair_by_their_bytes_together():
    flows = flows_between([0, 0, 1, 2], [8, 8, 9, 10], [2.0, 2.0, 3.0, 1.0], [0, 1, 0, 0])
    clos = Clos(2, 8, 2, 1.0, 1.0)
    assert routing.choose_spines(flows, clos, CENTRAL).tolist() == [0, 0, 1, 1]


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(2, 12), st.integers(1, 12), st.integers(0, 1000))
def test_the_controller_keeps_to_the_bound_of_greedy_choice(racks, nics, spines, seed):
    """A pair finds a spine whose two links together have at most the mean of what is there: so of flows of
    one size, at most d out of a rack and d into it, no link gets more than 2 (d - 1) / spines, rounded
    down, and 1."""
    clos = Clos(racks + 1, nics, spines, 1.0, 1.0)
    order = np.random.default_rng(seed).permutation(clos.nics)
    flows = flows_between(order, np.roll(order, 1))
    load = per_link(clos, flows, routing.choose_spines(flows, clos, CENTRAL))
    most = load.sum(axis=2).max()
    assert load.max() <= 2 * max(most - 1, 0) // spines + 1


@pytest.mark.parametrize("hosts", [16, 64, 128])
def test_the_controller_is_no_worse_than_a_hash(hosts):
    zone = meta_zone()
    for seed in range(5):
        nic_HG = placements.shuffled(placements.fragmented(zone, hosts, 8, seed), seed)
        flows = flows_of("allreduce", nic_HG, 1.0)
        hashed, placed = (
            loaded(zone, flows, routing.choose_spines(flows, zone, policy, seed)).max()
            for policy in (ADDRESSES, CENTRAL)
        )
        assert placed <= hashed
