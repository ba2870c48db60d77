"""The fabric of the simulator by flows: links counted by hand, what is down, where jobs are placed."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.instruments.network.clos import IN_RACK, Clos, failed_links, place


def small(failed=()):
    """Return three racks of two NICs and four spines."""
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


FABRIC = Clos(6, 4, 4, 1.0, 1.0)
"""Twelve hosts of two GPUs, two in each rack."""


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
