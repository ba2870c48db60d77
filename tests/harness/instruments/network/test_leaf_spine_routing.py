"""The simulated fabric: links by hand; flows against a ring walked chunk by chunk; spines by statistics."""

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from harness.instruments.network import routing
from harness.instruments.network.clos import IN_RACK, Clos, failed_links, place
from harness.instruments.network.routing import ALONE, Flows, RoutingPolicy, bus_bandwidth, flows_of

ADDRESSES, PORTS = RoutingPolicy(), RoutingPolicy(hash_ports=True)
PINNED, CENTRAL = RoutingPolicy("pinned"), RoutingPolicy("central")


def nics(hosts, gpus):
    return np.arange(hosts * gpus).reshape(hosts, gpus)


def walked(hosts, gpus, size):
    """Return bytes by (NIC, NIC), following each ring's chunks: in and out of a host by one NIC."""
    ranks, crossed = hosts * gpus, Counter()
    for rail in range(gpus):
        ring = [(host, (rail + step) % gpus) for host in reversed(range(hosts)) for step in range(gpus)]
        for _step in range(2 * (ranks - 1)):  # reduce-scatter, then all-gather
            for at, (host, _) in enumerate(ring):
                after = ring[(at + 1) % ranks][0]
                if after != host:
                    crossed[host * gpus + rail, after * gpus + rail] += Fraction(size, gpus * ranks)
    return crossed


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 1000))
def test_rings_carry_what_following_their_chunks_counts(hosts, gpus, size):
    flows, expected = flows_of("allreduce", nics(hosts, gpus), size), walked(hosts, gpus, size)
    found = dict(zip(zip(flows.source, flows.destination, strict=True), flows.size_B, strict=True))
    assert set(found) == set(expected)
    for pair, size_B in expected.items():
        assert found[pair] == pytest.approx(float(size_B))
    assert (flows.ring == flows.source % gpus).all()


@given(st.integers(2, 4), st.integers(1, 4), st.floats(1, 1e9))
def test_all_to_all_sends_each_rank_its_part_and_nothing_within_a_host(hosts, gpus, size):
    flows = flows_of("alltoall", nics(hosts, gpus), size)
    ranks = hosts * gpus
    pairs = {(a, b) for a in range(ranks) for b in range(ranks) if a // gpus != b // gpus}
    assert sorted(zip(flows.source, flows.destination, strict=True)) == sorted(pairs)
    assert flows.size_B == pytest.approx(size / ranks)
    assert set(flows.ring) == {ALONE}


@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 9), st.sampled_from(["allreduce", "alltoall"]))
def test_queue_pairs_carry_equal_parts_of_each_connection(hosts, gpus, pairs, kind):
    full, parts = (flows_of(kind, nics(hosts, gpus), 7.0, number) for number in (1, pairs))
    connections = {*zip(full.source, full.destination, strict=True)}
    rows = Counter(zip(parts.source, parts.destination, parts.queue_pair, strict=True))
    assert rows == {(*connection, number): 1 for connection in connections for number in range(pairs)}
    assert parts.size_B == pytest.approx(full.size_B[0] / pairs)
    if kind == "allreduce":  # each queue pair's ring is whole
        assert set(Counter(parts.ring.tolist()).values()) == {hosts}
        assert len(set(parts.ring)) == gpus * pairs


def test_a_nic_at_full_rate_gives_its_rate_as_bus_bandwidth():
    """The property that nccl-tests defines it by."""
    sent_B = flows_of("allreduce", nics(8, 1), 1e9).size_B[0]
    assert bus_bandwidth("allreduce", 8, 1e9, sent_B / 5e10) == pytest.approx(5e10)
    assert bus_bandwidth("alltoall", 8, 1e9, sent_B / 2 / 5e10) == pytest.approx(5e10)


def flows_between(source, destination, size_B=1.0, queue_pair=0):
    columns = (source, destination, np.asarray(size_B, dtype=float), ALONE, queue_pair)
    return Flows(*(np.array(column) for column in np.broadcast_arrays(*columns)))


def random_flows(clos, count, seed=0):
    rng = np.random.default_rng(seed)
    source, far = rng.integers(clos.nics, size=count), rng.integers(1, clos.nics, size=count)
    return flows_between(source, (source + far) % clos.nics, rng.integers(1, 5, size=count))


@pytest.mark.parametrize(("spines", "failed"), [(3, ()), (16, ()), (4, ((1, 2),))])
def test_addresses_and_queue_pairs_in_a_row_are_spread_over_live_spines_as_if_at_random(spines, failed):
    """Chi-square over 200 seeds: p values of a fair hash are uniform, so a handful lie below 0.01."""
    clos, sources = Clos(2, 2000, spines, 1.0, 1.0, failed), np.arange(2000)
    flows = flows_between(sources, 2000 + sources)
    live = [spine for spine in range(spines) if (1, spine) not in failed]
    found = []
    for seed in range(200):
        count = np.bincount(routing.choose_spines(flows, clos, ADDRESSES, seed), minlength=spines)
        assert count.sum() == count[live].sum()
        found.append(chisquare(count[live]).pvalue)
    assert np.mean(np.array(found) < 0.01) < 0.04
    assert 0.4 < np.mean(found) < 0.6
    of_one = flows_between(0, 2000, queue_pair=np.arange(4096))
    assert len(set(routing.choose_spines(of_one, clos, ADDRESSES, 5))) == 1
    count = np.bincount(routing.choose_spines(of_one, clos, PORTS, 5), minlength=spines)
    assert chisquare(count[live]).pvalue > 0.001


@pytest.mark.parametrize("spines", [8, 3])
def test_a_pin_is_the_destinations_place_in_its_rack_or_hashed_where_its_route_is_down(spines):
    down = {(0, 1), (3, 2), (5, spines - 1)}
    clos = Clos(6, 8, spines, 1.0, 1.0, failed=tuple(down))
    flows = random_flows(clos, 3000)
    found, hashed = (routing.choose_spines(flows, clos, policy, seed=3) for policy in (PINNED, ADDRESSES))
    moved = set()
    for source, other, spine, said in zip(flows.source, flows.destination, found, hashed, strict=True):
        one, two, own = source // 8, other // 8, other % 8 % spines
        if one != two and {(one, own), (two, own)} & down:
            assert spine == said
            moved.add((own, spine))
        else:
            assert spine == (own if one != two else IN_RACK)
    assert len({spine for _, spine in moved}) == spines  # to more than the next


def test_one_route_for_all_queue_pairs_of_a_pair_by_their_bytes_together():
    flows = flows_between([0, 0, 1, 2], [8, 8, 9, 10], [2.0, 2.0, 3.0, 1.0], [0, 1, 0, 0])
    clos = Clos(2, 8, 2, 1.0, 1.0)
    assert routing.choose_spines(flows, clos, CENTRAL).tolist() == [0, 0, 1, 1]


def small(failed=()):
    return Clos(3, 2, 4, 10.0, 5.0, failed)


def path(clos, *ways):
    return clos.paths(*np.array(ways, dtype=np.int64).T)


def test_every_link_has_one_place_and_its_rate():
    clos = small()
    assert (clos.nics, clos.links) == (6, 2 * 6 + 2 * 12)
    found = path(clos, (1, 5, 3), (4, 5, IN_RACK))
    assert found.tolist() == [[1, 6 + 0 * 4 + 3, 6 + 12 + 2 * 4 + 3, 30 + 5], [4, IN_RACK, IN_RACK, 30 + 5]]
    pairs = [(one, other) for one in range(6) for other in range(6) if one != other]
    ways = {
        (*pair, spine if pair[0] // 2 != pair[1] // 2 else IN_RACK) for pair in pairs for spine in range(4)
    }
    found = path(clos, *ways)
    assert set(found.ravel().tolist()) == {IN_RACK, *range(clos.links)}
    for column, rate in zip(found.T, (10.0, 5.0, 5.0, 10.0), strict=True):
        assert set(clos.capacities()[column[column != IN_RACK]]) == {rate}
    marked = np.isin(np.arange(clos.links), path(clos, (0, 4, 2)))
    assert np.argwhere(clos.by_uplink(marked)).tolist() == [[0, 0, 2], [1, 2, 2]]


def test_a_path_over_a_failed_link_or_with_a_needless_spine_is_refused():
    clos = small(failed=((1, 2),))
    assert path(clos, (0, 4, 2)).shape == (1, 4)
    for way in ((0, 2, 2), (2, 0, 2), (0, 1, 2), (0, 2, IN_RACK)):
        with pytest.raises(ValueError, match=r"failed link|one within a rack none"):
            path(clos, way)


FABRIC = Clos(6, 4, 4, 1.0, 1.0)  # twelve hosts of two GPUs, two in each rack


@given(st.integers(1, 12), st.integers(0, 99))
def test_a_job_has_whole_hosts_in_the_order_that_was_asked_for_by_its_seed(hosts, seed):
    aligned, found, mixed = (
        place(FABRIC, order, 2 * hosts, 2, seed).tolist() for order in ("aligned", "fragmented", "shuffled")
    )
    every = [[2 * host, 2 * host + 1] for host in range(12)]
    assert aligned == every[:hosts]
    assert found == [host for host in every if host in found] == sorted(mixed)
    assert len(found) == hosts
    assert mixed == place(FABRIC, "shuffled", 2 * hosts, 2, seed).tolist()


@given(st.integers(0, 12), st.integers(0, 99))
def test_failed_links_are_of_the_jobs_own_racks(count, seed):
    found = failed_links(FABRIC, np.array([[2, 3], [8, 9], [10, 11], [20, 21]]), count, seed)
    assert len(set(found)) == count
    assert set(found) <= set(product((0, 2, 5), range(4)))
