"""A network as data: what is refused, and the routes against shortest paths found another way."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.instruments.network.topology import Link, Topology, TopologyError, two_nodes

LEAVES, SPINES = ("leaf0", "leaf1"), ("spine0", "spine1", "spine2", "spine3")
FABRIC = Topology(
    ("h0", "h1", "h2", "h3"),
    LEAVES + SPINES,
    (
        *(Link(f"h{i}", LEAVES[i // 2]) for i in range(4)),
        *(Link(leaf, spine, 1e6) for leaf in LEAVES for spine in SPINES),
    ),
)


def test_two_nodes_on_a_switch_reach_each_other_through_it():
    network = two_nodes(1e6)
    assert [str(network.host_address(host)) for host in network.hosts] == ["10.128.0.1", "10.128.0.5"]
    (there,) = network.routes("node0")
    assert str(there.subnet) == "10.128.0.4/30"
    assert there.gateways == (network.address("switch", 0),)
    assert network.routes("switch") == []


def test_a_fabric_has_a_way_by_every_spine():
    ways = {str(r.subnet): r.gateways for r in FABRIC.routes("leaf0")}
    assert set(ways) == {str(FABRIC.subnet(FABRIC.link_of(h))) for h in ("h2", "h3")}
    for gateways in ways.values():
        assert len(set(gateways)) == len(SPINES)
    down = {str(r.subnet): r.gateways for r in FABRIC.routes("spine2")}
    assert {len(g) for g in down.values()} == {1}
    assert len(down) == 4


def test_every_address_is_given_once():
    given_to = [FABRIC.address(end, i) for i, link in enumerate(FABRIC.links) for end in link[:2]]
    assert len(set(given_to)) == len(given_to)


@pytest.mark.parametrize(
    ("hosts", "switches", "links", "said"),
    [
        ("x y", "", "x-y y-x", "host 'x' has 2 links; a host has one, a switch any number"),
        ("x y z", "s", "x-s y-s", "host 'z' has 0 links; a host has one, a switch any number"),
        ("x x", "s", "x-s", "two nodes are called 'x'"),
        ("x y", "x", "x-y", "two nodes are called 'x'"),
        ("x y", "", "x-z", "link x-z: there is no node 'z'; there are x, y"),
        ("x y", "s", "x-s s-s y-s", "link s-s leads from a node to itself"),
        ("x y z w", "", "x-y z-w", "host 'z' cannot be reached from 'x'"),
        ("x y", "s", "x-y", "switch 's' cannot be reached from 'x'"),
        ("x", "s", "x-s", "a network has at least two hosts, not 1"),
        ("x Y", "", "x-Y", "node 'Y': a name is a letter and up to 11 more or digits, a-z, 0-9"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(hosts, switches, links, said):
    wires = tuple(Link(*pair.split("-")) for pair in links.split())
    with pytest.raises(TopologyError) as error:
        Topology(tuple(hosts.split()), tuple(switches.split()), wires)
    assert str(error.value) == said


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_rate_is_above_zero(rate):
    with pytest.raises(TopologyError, match="is not above 0"):
        two_nodes(rate)


def test_a_rate_is_finite():
    with pytest.raises(TopologyError, match="link node0-switch: its rate inf B/s is not finite"):
        two_nodes(float("inf"))


@given(st.integers(2, 6), st.data())
def test_walking_along_routes_takes_the_fewest_links(count, data):
    switches = tuple(f"s{i}" for i in range(count))
    chain = [Link(one, other) for one, other in pairwise(switches)]
    more = data.draw(st.lists(st.sampled_from(list(combinations(switches, 2))), unique=True))
    hosts = ("x", "y")
    ends = [Link(host, data.draw(st.sampled_from(switches))) for host in hosts]
    network = Topology(hosts, switches, (*ends, *chain, *(Link(*pair) for pair in more)))
    owner = {network.address(end, i): end for i, link in enumerate(network.links) for end in link[:2]}
    fewest = shortest(network, "x", "y")
    frontier, steps = {"x"}, 0
    while frontier != {"y"}:
        frontier = {nxt for node in frontier for nxt in onward(network, node, "y", owner)}
        steps += 1
        assert steps <= fewest
    assert steps == fewest


def onward(network, node, target, owner):
    if any({node, target} == set(link[:2]) for link in network.links):
        return {target}
    subnet = network.subnet(network.link_of(target))
    (route,) = [r for r in network.routes(node) if r.subnet == subnet]
    return {owner[gateway] for gateway in route.gateways}


def shortest(network, start, end):
    """Return distances by Floyd and Warshall; routes come from breadth-first search."""
    far = {(a, b): 0 if a == b else 99 for a in network.nodes for b in network.nodes}
    for link in network.links:
        far[link.one, link.other] = far[link.other, link.one] = 1
    for k in network.nodes:
        for i in network.nodes:
            for j in network.nodes:
                far[i, j] = min(far[i, j], far[i, k] + far[k, j])
    return far[start, end]
