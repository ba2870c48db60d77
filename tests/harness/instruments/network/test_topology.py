"""A network as data: its addresses and routes by hand, and which networks and rules are refused."""

import pytest

from harness.instruments.network.topology import (
    Link,
    RouteRule,
    Topology,
    TopologyError,
    two_nodes,
    validate_rules,
)

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


@pytest.mark.parametrize(
    ("hosts", "switches", "links", "said"),
    [
        ("x y", "", "x-y y-x", "host 'x' has 2 links"),
        ("x y z", "s", "x-s y-s", "host 'z' has 0 links"),
        ("x y", "x", "x-y", "two nodes are called 'x'"),
        ("x y", "", "x-z", "link x-z: there is no node 'z'; there are x, y"),
        ("x y", "s", "x-s s-s y-s", "link s-s leads from a node to itself"),
        ("x y z w", "", "x-y z-w", "host 'z' cannot be reached from 'x'"),
        ("x y", "s", "x-y", "switch 's' cannot be reached from 'x'"),
        ("x", "s", "x-s", "a network has at least two hosts, not 1"),
        ("x Y", "", "x-Y", "node 'Y': a name is"),
    ],
)
def test_what_cannot_be_is_refused(hosts, switches, links, said):
    wires = tuple(Link(*pair.split("-")) for pair in links.split())
    with pytest.raises(TopologyError) as error:
        Topology(tuple(hosts.split()), tuple(switches.split()), wires)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_above_zero_and_finite(rate):
    with pytest.raises(TopologyError, match=r"link node0-switch: its rate .* is not (above 0|finite)"):
        two_nodes(rate)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (RouteRule("leaf9", "h2", 4), "'leaf9' is not a switch; allowed: leaf0, leaf1, spine0"),
        (RouteRule("h0", "h2", 0), "'h0' is not a switch"),
        (RouteRule("leaf0", "h9", 4), "there is no host 'h9'; allowed: h0, h1, h2, h3"),
        (RouteRule("leaf0", "h2", 4, "h9"), "there is no host 'h9'"),
        (RouteRule("leaf0", "h2", 8), "link 8 is not one of its links, 0, 1, 4, 5, 6, 7"),
        (RouteRule("leaf0", "h2", 1), "by h1 packets come no nearer, and may go in a loop"),
        (RouteRule("leaf0", "h1", 5), "by spine1 packets come no nearer"),
        (RouteRule("spine0", "h2", 4), "by leaf0 packets come no nearer"),
    ],
)
def test_a_way_that_is_none_is_refused(rule, said):
    validate_rules(FABRIC, [RouteRule("leaf0", host, link) for host in ("h2", "h3") for link in range(4, 8)])
    with pytest.raises(TopologyError) as error:
        validate_rules(FABRIC, [rule])
    assert str(error.value).startswith(f"at {rule.switch} to {rule.host}: {said}")
