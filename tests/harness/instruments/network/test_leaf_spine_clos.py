"""The fabric of the simulator by flows: links counted by hand, what is down, what is refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meta_zone import meta_zone

from harness.instruments.network.clos import IN_RACK, Clos, live_spines


def small(**changed):
    """Return three racks of two NICs and four spines."""
    said = {"racks": 3, "nics_per_rack": 2, "spines": 4, "nic_B_per_s": 10.0, "uplink_B_per_s": 5.0}
    return Clos(**(said | changed))


def ids(*numbers):
    return np.array(numbers, dtype=np.int64)


def test_links_are_counted_once_each_way():
    clos = small()
    assert (clos.nics, clos.links) == (6, 2 * 6 + 2 * 12)
    path = clos.paths(ids(1, 4), ids(5, 5), ids(3, IN_RACK))
    assert path.tolist() == [[1, 6 + 0 * 4 + 3, 6 + 12 + 2 * 4 + 3, 30 + 5], [4, IN_RACK, IN_RACK, 30 + 5]]


def test_every_link_has_one_place_and_its_rate():
    clos = small()
    ways = [
        (one, other, spine if one // 2 != other // 2 else IN_RACK)
        for one, other, spine in itertools.product(range(6), range(6), range(4))
        if one != other
    ]
    path = clos.paths(*(np.array(column) for column in zip(*ways, strict=True)))
    assert set(path.ravel().tolist()) == {IN_RACK, *range(clos.links)}
    for column, rate in zip(path.T, (10.0, 5.0, 5.0, 10.0), strict=True):
        assert set(clos.capacities()[column[column != IN_RACK]]) == {rate}


def test_values_of_uplinks_are_found_by_rack_and_spine():
    clos = small()
    path = clos.paths(ids(0), ids(4), ids(2))[0]
    marked = np.zeros(clos.links)
    marked[path] = 1
    assert np.argwhere(clos.by_uplink(marked)).tolist() == [[0, 0, 2], [1, 2, 2]]


def test_a_link_that_is_down_is_no_path():
    clos = small(failed=((1, 2),))
    assert clos.paths(ids(0), ids(4), ids(2)).shape == (1, 4)
    for source, destination in ((0, 2), (2, 0)):
        with pytest.raises(ValueError, match="uses a failed link"):
            clos.paths(ids(source), ids(destination), ids(2))
    assert clos.capacities().min() > 0


@pytest.mark.parametrize(("source", "destination", "spine"), [(0, 1, 2), (0, 2, IN_RACK)])
def test_a_spine_goes_with_a_route_between_racks(source, destination, spine):
    with pytest.raises(ValueError, match="between racks has a spine, and one within a rack none"):
        small().paths(ids(source), ids(destination), ids(spine))


places = st.tuples(st.integers(0, 2), st.integers(0, 3))


@given(st.sets(places, max_size=6))
def test_live_spines_are_those_with_both_links_up_or_the_cut_is_named(failed):
    shared = {
        (one, other): [s for s in range(4) if (one, s) not in failed and (other, s) not in failed]
        for one, other in itertools.product(range(3), range(3))
    }
    cut = [pair for pair, found in shared.items() if pair[0] != pair[1] and not found]
    if cut:
        with pytest.raises(ValueError, match=f"cut rack {cut[0][0]} off from rack {cut[0][1]}"):
            small(failed=tuple(failed))
        return
    live = live_spines(small(failed=tuple(failed)))
    for pair, found in shared.items():
        assert live.count_RR[pair] == len(found)
        assert live.spine_RRS[pair][: len(found)].tolist() == found


def test_one_rack_alone_is_never_cut_off():
    assert small(racks=1, failed=((0, 0), (0, 1), (0, 2), (0, 3))).live_RS.sum() == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"racks": 0}, "racks, at least one, not 0"),
        ({"nics_per_rack": 0}, "NICs in a rack, at least one, not 0"),
        ({"spines": -1}, "spines, at least one, not -1"),
        ({"nic_B_per_s": 0.0}, r"NIC rate 0.0 B/s is not above 0"),
        ({"uplink_B_per_s": -1.0}, r"uplink rate -1.0 B/s is not above 0"),
        ({"uplink_B_per_s": float("inf")}, r"uplink rate inf B/s is not above 0 and finite"),
        ({"nic_B_per_s": float("nan")}, r"NIC rate nan B/s is not above 0 and finite"),
        ({"failed": ((3, 0),)}, r"failed link \(rack 3, spine 0\) is not there"),
        ({"failed": ((0, -1),)}, r"failed link \(rack 0, spine -1\) is not there"),
        ({"spines": 1, "failed": ((0, 0),)}, "cut rack 0 off from rack 1"),
    ],
)
def test_a_fabric_that_cannot_be_is_refused_in_one_line(changed, said):
    with pytest.raises(ValueError, match=said) as refused:
        small(**changed)
    assert "\n" not in str(refused.value)


def test_metas_zone_blocks_nothing_and_may_have_twice_the_uplinks():
    zone = meta_zone()
    assert zone.nics == 3072
    assert zone.nics_per_rack * zone.nic_B_per_s == zone.spines * zone.uplink_B_per_s
    assert meta_zone(2.0).uplink_B_per_s == 2 * zone.uplink_B_per_s
