"""A network as data: its addresses and routes by hand."""

from harness.instruments.network.topology import Link, Topology, two_nodes

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
