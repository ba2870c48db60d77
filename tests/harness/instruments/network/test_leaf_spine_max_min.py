"""Max-min fair shares and completions: closed formulas, the definition itself, exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.instruments.network import flow_simulator
from harness.instruments.network.clos import IN_RACK
from harness.instruments.network.flow_simulator import (
    Crossings,
    completions_s,
    crossings,
    entities,
    shares,
)
from harness.instruments.network.routing import ALONE, Flows


def crossed(*ways):
    """Return entities by their links, a link as often as it is crossed."""
    longest = max(map(len, ways))
    return crossings(np.array([[*way, *[IN_RACK] * (longest - len(way))] for way in ways]))


def rates(capacity, *ways):
    return shares(crossed(*ways), np.array(capacity, dtype=float)).tolist()


def test_two_flows_halve_a_link():
    assert rates([10], [0], [0]) == [5, 5]


def test_what_one_cannot_use_another_gets():
    assert rates([10, 2], [0], [0, 1]) == pytest.approx([8, 2])


def test_the_classical_line_of_three_links():
    """Bertsekas and Gallager's kind: one flow over all links, others on one each; capacity 1."""
    assert rates([1, 1, 1], [0, 1, 2], [0], [1], [2]) == pytest.approx([0.5] * 4)
    found = rates([1, 1, 1], [0, 1, 2], [0], [1], [1], [2])
    assert found == pytest.approx([1 / 3, 2 / 3, 1 / 3, 1 / 3, 2 / 3])


def test_a_chain_is_filled_link_after_link():
    assert rates([1, 10, 100], [0], [0, 1], [1, 2], [2]) == pytest.approx([0.5, 0.5, 9.5, 90.5])


def test_who_crosses_twice_counts_twice():
    assert rates([9], [0, 0], [0]) == pytest.approx([3, 3])


networks = st.integers(1, 5).flatmap(
    lambda links: st.tuples(
        st.lists(st.integers(1, 12), min_size=links, max_size=links),
        st.lists(st.lists(st.integers(0, links - 1), min_size=1, max_size=4), min_size=1, max_size=7),
    )
)
"""Capacities, and the links of each entity, some of them several times."""


def filled(capacity, ways):
    """Return rates in fractions: the narrowest link first, then the next."""
    left, rate = [Fraction(one) for one in capacity], {}
    while len(rate) < len(ways):
        share = {}
        for link in range(len(capacity)):
            weight = sum(way.count(link) for entity, way in enumerate(ways) if entity not in rate)
            if weight:
                share[link] = left[link] / weight
        narrow = min(share, key=share.__getitem__)
        for entity, way in enumerate(ways):
            if narrow in way and entity not in rate:
                rate[entity] = share[narrow]
                for link in way:
                    left[link] -= share[narrow]
    return [rate[entity] for entity in range(len(ways))]


def completed(capacity, ways, sizes):
    """Return completions in fractions, one at a time."""
    now, left, over = Fraction(0), dict(enumerate(map(Fraction, sizes))), {}
    while left:
        runs = list(left)
        rate = dict(zip(runs, filled(capacity, [ways[entity] for entity in runs]), strict=True))
        step = min(left[entity] / rate[entity] for entity in runs)
        now += step
        for entity in runs:
            left[entity] -= rate[entity] * step
            if left[entity] == 0:
                over[entity] = now
                del left[entity]
    return [over[entity] for entity in range(len(ways))]


@given(networks)
def test_shares_are_those_of_filling_one_link_at_a_time(network):
    capacity, ways = network
    assert rates(capacity, *ways) == pytest.approx([float(one) for one in filled(capacity, ways)], rel=1e-8)


@given(networks)
def test_every_flow_has_a_full_link_on_which_none_is_faster(network):
    """Bertsekas and Gallager's bottleneck condition, which only max-min fair rates meet; no link is
    overfull."""
    capacity, ways = network
    rate = rates(capacity, *ways)
    used = [
        sum(r * way.count(link) for r, way in zip(rate, ways, strict=True)) for link in range(len(capacity))
    ]
    assert all(one <= most * (1 + 1e-9) for one, most in zip(used, capacity, strict=True))
    for own, way in zip(rate, ways, strict=True):
        assert any(
            used[link] >= capacity[link] * (1 - 1e-8)
            and all(other <= own * (1 + 1e-8) for other, w in zip(rate, ways, strict=True) if link in w)
            for link in way
        )


def test_many_flows_meet_the_definition_too():
    rng = np.random.default_rng(0)
    path_FJ = np.array([rng.choice(200, 4, replace=False) for _ in range(5000)])
    capacity = rng.uniform(1, 3, 200)
    rate = shares(crossings(path_FJ), capacity)
    used = np.bincount(path_FJ.ravel(), np.repeat(rate, 4), 200)
    fastest = np.zeros(200)
    np.maximum.at(fastest, path_FJ.ravel(), np.repeat(rate, 4))
    full = used >= capacity * (1 - 1e-6)
    assert (used <= capacity * (1 + 1e-9)).all()
    assert (full[path_FJ] & (fastest[path_FJ] <= rate[:, None] * (1 + 1e-6))).any(axis=1).all()


sizes = st.lists(st.integers(1, 9), min_size=7, max_size=7)


@given(networks, sizes)
def test_completions_are_those_in_fractions(network, sizes):
    capacity, ways = network
    found = completions_s(crossed(*ways), np.array(sizes[: len(ways)], float), np.array(capacity, float), 0.0)
    assert found == pytest.approx(
        [float(one) for one in completed(capacity, ways, sizes[: len(ways)])], rel=1e-7
    )


def test_small_steps_of_time_come_to_the_same():
    """Two flows on a link of 4 B/s, one of them on one of 1 B/s too, stepped by the millisecond."""
    capacity, ways, left, now, over = [4, 1], [[0], [0, 1], [0]], [6.0, 2.0, 3.0], 0.0, {}
    while len(over) < 3:
        runs = [entity for entity in range(3) if entity not in over]
        for entity, rate in zip(runs, filled(capacity, [ways[one] for one in runs]), strict=True):
            left[entity] -= float(rate) * 1e-3
            if left[entity] <= 0:
                over[entity] = now + 1e-3
        now += 1e-3
    found = completions_s(crossed(*ways), np.array([6.0, 2.0, 3.0]), np.array([4.0, 1.0]), 0.0)
    assert found == pytest.approx([over[entity] for entity in range(3)], abs=5e-3)


@given(networks, sizes, st.floats(1e-3, 0.3))
def test_a_tolerance_only_makes_flows_larger_by_that_part(network, sizes, tolerance):
    """The bound that is promised: some sizes within it have these very completions."""
    capacity, ways = network
    size = np.array(sizes[: len(ways)], float)
    over = completions_s(crossed(*ways), size, np.array(capacity, float), tolerance)
    carried, now, left = np.zeros(len(ways)), 0.0, set(range(len(ways)))
    for until in sorted(set(over)):
        runs = sorted(left)
        for entity, rate in zip(runs, filled(capacity, [ways[one] for one in runs]), strict=True):
            carried[entity] += float(rate) * (until - now)
        left -= {entity for entity in left if over[entity] == until}
        now = until
    assert (carried >= size * (1 - 1e-7)).all()
    assert (carried <= size * (1 + tolerance + 1e-7)).all()


@given(networks, st.floats(0, 0.2))
def test_of_equal_sizes_the_fullest_link_ends_last(network, tolerance):
    """What `simulated` builds on: the last completion is the largest load over capacity."""
    capacity, ways = network
    load = [sum(way.count(link) for way in ways) for link in range(len(capacity))]
    bound = max(3.0 * one / most for one, most in zip(load, capacity, strict=True))
    size, capacity = np.full(len(ways), 3.0), np.array(capacity, float)
    assert completions_s(crossed(*ways), size, capacity, 0.0).max() == pytest.approx(bound)
    grouped = completions_s(crossed(*ways), size, capacity, tolerance).max()
    assert bound * (1 - 1e-9) <= grouped <= bound * (1 + tolerance) * (1 + 1e-9)


def test_many_completions_take_few_steps(monkeypatch):
    """20,000 flows, no two rates alike, from 1 to 10: ln(10) / tolerance steps, by and large."""
    counted = []
    monkeypatch.setattr(flow_simulator, "shares", lambda *said: counted.append(1) or shares(*said))
    path_FJ = np.arange(20_000)[:, None]
    capacity = np.geomspace(1, 10, 20_000)
    over = completions_s(crossings(path_FJ), np.ones(20_000), capacity, 1e-2)
    assert len(counted) < 1.2 * np.log(10) / 1e-2
    assert over * capacity == pytest.approx(1.005, abs=0.0051)


def test_work_is_conserved_while_there_is_any():
    """One link, any sizes: it is never idle, so the last ends when all bytes are through."""
    size = np.random.default_rng(1).uniform(1, 50, 30)
    assert completions_s(crossed(*[[0]] * 30), size, np.array([7.0]), 0.0).max() == pytest.approx(
        size.sum() / 7
    )


def test_flows_of_a_ring_are_one_entity():
    nothing = np.zeros(5, dtype=np.int64)
    ring = np.array([4, ALONE, 4, 0, ALONE])
    found = entities(Flows(nothing, nothing, nothing * 1.0, ring, nothing))
    assert found[0] == found[2]
    assert sorted(set(found.tolist())) == [0, 1, 2, 3]


def test_a_ring_goes_at_the_pace_of_its_slowest_hop():
    path_FJ, ring = np.array([[0, 1], [1, 2], [2, 0], [1, IN_RACK]]), np.array([0, 0, 0, 1])
    found = shares(crossings(path_FJ, ring), np.array([9.0, 6.0, 2.0]))
    assert found == pytest.approx([1.0, 4.0])  # link 2 is crossed twice by the ring; link 1 leaves 4


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_no_link_has_is_refused(rate):
    with pytest.raises(ValueError, match="rate that is not above 0 and finite"):
        rates([rate], [0])


def test_a_rate_of_a_link_that_nobody_crosses_does_not_matter():
    assert rates([4.0, 0.0], [0]) == [4.0]


@pytest.mark.parametrize("path", [np.zeros((0, 4), dtype=np.int64), np.array([[0], [IN_RACK]])])
def test_no_flows_or_one_without_a_link_are_refused(path):
    with pytest.raises(ValueError, match=r"no flows|crosses no link"):
        crossings(path)


@pytest.mark.parametrize(("size", "tolerance"), [(0.0, 0.1), (float("nan"), 0.1), (1.0, -0.1), (1.0, 1.0)])
def test_sizes_and_tolerances_out_of_range_are_refused(size, tolerance):
    with pytest.raises(ValueError, match="sizes must be above 0 and finite"):
        completions_s(crossed([0]), np.array([size]), np.array([1.0]), tolerance)


def test_crossings_are_counted_by_entity_and_link():
    found = crossings(np.array([[0, 2], [2, IN_RACK], [1, 1]]), np.array([0, 0, 1]))
    expected = Crossings(np.array([0, 0, 1]), np.array([0, 2, 1]), np.array([1.0, 2.0, 2.0]))
    assert all((one == other).all() for one, other in zip(found, expected, strict=True))
