"""Which flows collectives make, against a ring that is walked chunk by chunk; where ranks are placed."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.instruments.network import clos as placements
from harness.instruments.network.clos import Clos
from harness.instruments.network.routing import (
    ALONE,
    bus_bandwidth,
    flows_of,
    split_over_queue_pairs,
)

few = st.integers(1, 4)


def fabric(racks=6, nics=4):
    return Clos(racks, nics, 4, 1.0, 1.0)


def nics(hosts, gpus):
    return np.arange(hosts * gpus).reshape(hosts, gpus)


def walked(hosts, gpus, size):
    """Return the bytes that cross the network by (NIC, NIC), following each ring's chunks.

    Ring r enters a host at GPU r, visits the others, and comes back to leave by the NIC of r.
    """
    ranks, crossed = hosts * gpus, Counter()
    for rail in range(gpus):
        ring = [(host, (rail + step) % gpus) for host in reversed(range(hosts)) for step in range(gpus)]
        for _step in range(2 * (ranks - 1)):  # reduce-scatter, then all-gather
            for place, (host, _) in enumerate(ring):
                after = ring[(place + 1) % ranks][0]
                if after != host:
                    crossed[host * gpus + rail, after * gpus + rail] += Fraction(size, gpus * ranks)
    return crossed


@given(st.integers(2, 5), few, st.integers(1, 1000))
def test_rings_carry_what_following_their_chunks_counts(hosts, gpus, size):
    flows, expected = flows_of("allreduce", nics(hosts, gpus), size), walked(hosts, gpus, size)
    found = dict(zip(zip(flows.source, flows.destination, strict=True), flows.size_B, strict=True))
    assert set(found) == set(expected)
    for pair, size_B in expected.items():
        assert found[pair] == pytest.approx(float(size_B))


def test_a_ring_has_one_way_in_and_one_out_of_each_host_on_its_rail():
    flows = flows_of("allreduce", nics(5, 4), 100)
    for rail in range(4):
        mine = flows.ring == rail
        assert sorted(flows.source[mine]) == sorted(flows.destination[mine]) == list(range(rail, 20, 4))
        assert all((flows.source[mine] - flows.destination[mine] - 4) % 20 == 0)


@given(st.integers(2, 4), few, st.floats(1, 1e9))
def test_all_to_all_sends_each_rank_its_part_and_nothing_within_a_host(hosts, gpus, size):
    flows = flows_of("alltoall", nics(hosts, gpus), size)
    ranks = hosts * gpus
    pairs = {(a, b) for a in range(ranks) for b in range(ranks) if a // gpus != b // gpus}
    assert sorted(zip(flows.source, flows.destination, strict=True)) == sorted(pairs)
    assert flows.size_B == pytest.approx(size / ranks)
    assert set(flows.ring) == {ALONE}


@given(st.integers(2, 4), few, st.integers(1, 9), st.sampled_from(["allreduce", "alltoall"]))
def test_queue_pairs_carry_equal_parts_of_each_connection(hosts, gpus, pairs, kind):
    whole, parts = (flows_of(kind, nics(hosts, gpus), 7.0, number) for number in (1, pairs))
    carried = Counter()
    for source, destination, size_B, _, number in zip(*parts, strict=True):
        carried[source, destination] += size_B
        assert 0 <= number < pairs
    for source, destination, size_B, _, _ in zip(*whole, strict=True):
        assert carried[source, destination] == pytest.approx(size_B)
    assert len(set(zip(parts.source, parts.destination, parts.queue_pair, strict=True))) == len(parts.source)
    assert np.ptp(parts.size_B) == 0
    if kind == "allreduce":  # each queue pair's ring is whole
        assert set(Counter(parts.ring.tolist()).values()) == {hosts}
        assert len(set(parts.ring)) == gpus * pairs


def test_bus_bandwidth_does_not_depend_on_the_number_of_ranks():
    """A NIC at full rate gives its rate: the wanted property that nccl-tests defines it by."""
    for ranks in (2, 8, 1024):
        sent = flows_of("allreduce", nics(ranks, 1), 1e9).size_B[0]
        assert bus_bandwidth("allreduce", ranks, 1e9, sent / 5e10) == pytest.approx(5e10)
        received = flows_of("alltoall", nics(ranks, 1), 1e9).size_B[0] * (ranks - 1)
        assert bus_bandwidth("alltoall", ranks, 1e9, received / 5e10) == pytest.approx(5e10)
    assert bus_bandwidth("allreduce", 4, 100.0, 2.0) == 75.0
    assert bus_bandwidth("alltoall", 4, 100.0, 2.0) == 37.5


@pytest.mark.parametrize(
    ("kind", "hosts", "size", "pairs", "said"),
    [
        ("broadcast", 2, 1.0, 1, "no collective 'broadcast': allreduce or alltoall"),
        ("allreduce", 1, 1.0, 1, "no flows: a collective on 1 host"),
        ("alltoall", 1, 1.0, 1, "no flows: a collective on 1 host"),
        ("allreduce", 2, 0.0, 1, "no flows: a collective of 0.0 B"),
        ("allreduce", 2, float("nan"), 1, "no flows: a collective of nan B"),
        ("alltoall", 2, float("inf"), 1, "above 0 and finite"),
        ("alltoall", 2, 1.0, 0, "at least one queue pair, not 0"),
    ],
)
def test_a_collective_that_cannot_be_is_refused(kind, hosts, size, pairs, said):
    with pytest.raises(ValueError, match=said):
        flows_of(kind, nics(hosts, 2), size, pairs)


def test_split_refuses_too_few_queue_pairs():
    with pytest.raises(ValueError, match="not -1"):
        split_over_queue_pairs(flows_of("allreduce", nics(2, 1), 1.0), -1)


def test_aligned_hosts_fill_rack_after_rack():
    assert placements.aligned(fabric(), 3, 2).tolist() == [[0, 1], [2, 3], [4, 5]]


@given(st.integers(1, 12), st.integers(0, 99))
def test_fragmented_hosts_are_whole_hosts_in_the_order_of_racks(hosts, seed):
    found = placements.fragmented(fabric(), hosts, 2, seed)
    assert found.tolist() == sorted(found.tolist())
    assert len({one for one, _ in found}) == hosts
    assert all(one % 2 == 0 and other == one + 1 and other < 24 for one, other in found)


@given(st.integers(0, 99))
def test_shuffled_ranks_have_the_same_hosts(seed):
    given_ = placements.aligned(fabric(), 12, 2)
    found = placements.shuffled(given_, seed)
    assert sorted(found.tolist()) == given_.tolist()


def test_placements_depend_on_the_seed_alone():
    clos = fabric(50)
    one, again, other = (placements.fragmented(clos, 20, 2, seed) for seed in (1, 1, 2))
    assert one.tolist() == again.tolist() != other.tolist()
    one, again, other = (placements.shuffled(one, seed) for seed in (1, 1, 2))
    assert one.tolist() == again.tolist() != other.tolist()


def test_every_host_is_chosen_now_and_then():
    chosen = Counter(
        int(one) for seed in range(400) for one in placements.fragmented(fabric(), 3, 2, seed)[:, 0] // 2
    )
    assert len(chosen) == 12
    assert max(chosen.values()) < 2 * min(chosen.values())  # each 100 times, give or take 9


@given(st.integers(0, 12), st.integers(0, 99))
def test_failed_links_are_of_the_jobs_own_racks(count, seed):
    clos, job = fabric(), np.array([[2, 3], [8, 9], [10, 11], [20, 21]])
    found = placements.failed_links(clos, job, count, seed)
    assert len(set(found)) == count
    assert {rack for rack, _ in found} <= {0, 2, 5}
    assert all(0 <= spine < 4 for _, spine in found)


@pytest.mark.parametrize(
    ("hosts", "gpus", "said"),
    [
        (13, 2, "a job of 13 hosts: the fabric has 12"),
        (0, 2, "a job of 0 hosts"),
        (1, 3, "not a multiple of hosts with 3"),
        (1, 0, "not a multiple of hosts with 0"),
    ],
)
def test_a_job_that_has_no_place_is_refused(hosts, gpus, said):
    for place in (placements.aligned, lambda *job: placements.fragmented(*job, seed=0)):
        with pytest.raises(ValueError, match=said):
            place(fabric(), hosts, gpus)


def test_more_failures_than_links_are_refused():
    with pytest.raises(ValueError, match="failed_uplinks=5: the job's racks have 4 links"):
        placements.failed_links(fabric(), np.array([[0, 1]]), 5, 0)
