"""Routing rules: what is refused, and the kernel's routes against bytes counted on each link."""

import itertools
import subprocess

import pytest
from moved import needs_namespaces, script
from test_topology import FABRIC, LEAVES

from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import Flow, RouteRule, TopologyError, validate_rules

COUNT_B = 200_000
UPLINKS = range(4, 8)  # leaf0's, by spine
PORTS = range(40000, 40012)
FREE = itertools.count(20000)
"""Ports to send from: below those that the kernel gives; none twice, for one is kept a minute."""

TAKE = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    for _ in range(int(sys.argv[2])):
        connection, _ = server.accept()
        while connection.recv(1 << 16):
            pass
print("all")
"""
GIVE = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), source_address=("", int(sys.argv[3]))) as one:
    one.sendall(bytes(int(sys.argv[4])))
"""


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            RouteRule("leaf9", "h2", 4),
            "at leaf9 to h2: 'leaf9' is not a switch; allowed: leaf0, leaf1, spine0",
        ),
        (RouteRule("h0", "h2", 0), "at h0 to h2: 'h0' is not a switch"),
        (RouteRule("leaf0", "h9", 4), "at leaf0 to h9: there is no host 'h9'; allowed: h0, h1, h2, h3"),
        (RouteRule("leaf0", "h2", 4, "h9"), "there is no host 'h9'"),
        (RouteRule("leaf0", "h2", 8), "at leaf0 to h2: link 8 is not one of its links, 0, 1, 4, 5, 6, 7"),
        (RouteRule("leaf0", "h2", 1), "at leaf0 to h2: by h1 packets come no nearer"),
        (
            RouteRule("leaf0", "h1", 5),
            "at leaf0 to h1: by spine1 packets come no nearer",
        ),
        (
            RouteRule("spine0", "h2", 4),
            "at spine0 to h2: by leaf0 packets come no nearer",
        ),
    ],
)
def test_a_way_that_is_none_is_refused_in_one_line(rule, said):
    with pytest.raises(TopologyError) as error:
        validate_rules(FABRIC, [rule])
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_way_by_any_spine_is_one():
    validate_rules(FABRIC, [RouteRule("leaf0", host, link) for host in ("h2", "h3") for link in UPLINKS])


@pytest.fixture(scope="module")
def fabric():
    needs_namespaces()
    with Network(FABRIC) as network:
        yield network


@pytest.fixture(autouse=True)
def _as_it_was(request):
    yield
    if "fabric" in request.fixturenames:
        network = request.getfixturevalue("fabric")
        network.hash_ports(ports=True)
        network.set_rules([])


def went(network, source):
    """Return the link that the kernel reports for a connection, and the one that carried its bytes."""
    address, port = network.address("h2"), next(FREE)
    with subprocess.Popen(
        script(network, "h2", TAKE, address, 1), stdout=subprocess.PIPE, text=True
    ) as taking:
        there = int(taking.stdout.readline())
        before = [one for one, _ in network.sent()]
        try:
            subprocess.run(
                script(network, source, GIVE, address, there, port, COUNT_B), check=True, timeout=60
            )
            assert taking.stdout.read().strip() == "all"
        finally:
            taking.kill()
    rose = {link: network.sent()[link][0] - before[link] for link in UPLINKS}
    (carried,) = (link for link, count_B in rose.items() if count_B > COUNT_B)
    assert sum(rose.values()) < 1.2 * COUNT_B
    (told,) = network.egress_links([Flow("leaf0", FABRIC.link_of(source), source, port, "h2", there)])
    return told, carried


@pytest.mark.parametrize("ports", [True, False])
def test_the_kernel_says_which_way_a_connection_goes(fabric, ports):
    fabric.hash_ports(ports)
    found = [went(fabric, "h0") for _ in range(6)]
    assert all(told == carried for told, carried in found)
    if not ports:
        assert len({carried for _, carried in found}) == 1


def test_addresses_alone_send_all_of_two_hosts_one_way_and_ports_spread_them(fabric):
    flows = [Flow("leaf0", 0, "h0", port, "h2", 5000) for port in range(40000, 40200)]
    spread = fabric.egress_links(flows)
    assert set(spread) == set(UPLINKS)
    assert max(map(spread.count, UPLINKS)) < 90
    fabric.hash_ports(ports=False)
    assert len(set(fabric.egress_links(flows))) == 1


@pytest.mark.parametrize("link", UPLINKS)
def test_what_is_steered_goes_there_and_no_more_after_the_next_call(fabric, link):
    spread = fabric.egress_links([Flow("leaf0", 0, "h0", port, "h2", 5000) for port in PORTS])
    fabric.set_rules([RouteRule("leaf0", "h2", link)])
    assert went(fabric, "h0") == (link, link)
    other = UPLINKS[0] if link != UPLINKS[0] else UPLINKS[1]
    fabric.set_rules([RouteRule("leaf0", "h2", other, "h1"), RouteRule("leaf1", "h0", 8)])
    assert went(fabric, "h1") == (other, other)
    assert fabric.egress_links([Flow("leaf0", 0, "h0", port, "h2", 5000) for port in PORTS]) == spread
    fabric.set_rules([])
    assert set(
        fabric.egress_links([Flow("leaf0", 1, "h1", port, "h2", 5000) for port in range(40000, 40100)])
    ) == set(UPLINKS)


def test_a_source_of_its_own_goes_before_what_holds_for_all(fabric):
    fabric.set_rules([RouteRule("leaf0", "h2", 4), RouteRule("leaf0", "h2", 6, "h1")])
    assert fabric.egress_links([Flow("leaf0", i, f"h{i}", 40000, "h2", 5000) for i in range(2)]) == [4, 6]


def test_a_loop_is_refused_before_a_kernel_hears_of_it(fabric):
    with pytest.raises(TopologyError, match="in a loop"):
        fabric.set_rules([RouteRule(LEAVES[0], "h2", 0)])
    assert went(fabric, "h0")[1] in UPLINKS
