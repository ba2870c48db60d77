"""A network of namespaces: real bytes against what was asked of it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from moved import ATTEMPTS, moved, needs_namespaces, script
from test_topology import FABRIC, LEAVES, SPINES

from harness.instruments.network import emulated_network as module
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import TopologyError, two_nodes
from harness.records import Unavailable

RATE_B_PER_S = 5e6
FRAME_B, SEGMENT_B = 1514, 1448  # Ethernet, and the data in it behind IPv4 and TCP with a time stamp

DOWN = """
import sys
from pyroute2 import IPRoute
with IPRoute() as kernel:
    kernel.link("set", index=kernel.link_lookup(ifname=sys.argv[1])[0], state="down")
"""

KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=1.6)
except TimeoutError:
    print("no answer")
"""

CREDITS = {
    "tcp_congestion_control": "reno",
    "tcp_moderate_rcvbuf": "0",
    "tcp_rmem": "16384\t16384\t16384",
    "tcp_early_retrans": "0",
}
UNREAD = """
import socket, sys, time
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
    time.sleep(30)
"""
PUSH = """
import fcntl, socket, struct, sys, termios, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.settimeout(0.5)
pushed = 0
try:
    while True:
        pushed += connection.send(bytes(1 << 14))
except TimeoutError:
    pass
unacknowledged = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]
print(pushed - unacknowledged)
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_namespaces():
    needs_namespaces()


@pytest.fixture(scope="module")
def two():
    with Network(two_nodes(RATE_B_PER_S)) as network:
        yield network


@pytest.fixture(autouse=True)
def _rate_as_it_was(request):
    yield
    if "two" in request.fixturenames:
        network = request.getfixturevalue("two")
        for link in range(2):
            network.set_rate(link, RATE_B_PER_S)


def near(network, rate_B_per_s, sender="node0", receiver="node1"):
    """Return whether frames of that many bytes per second carry what the receiver sees."""
    for _ in range(ATTEMPTS):
        came, rate = moved(network, sender, receiver, int(rate_B_per_s))
        assert came == int(rate_B_per_s)
        if abs(rate * FRAME_B / SEGMENT_B / rate_B_per_s - 1) < 0.05:
            return True
    return False


def test_a_link_carries_what_was_asked_either_way(two):
    assert near(two, RATE_B_PER_S)
    assert near(two, RATE_B_PER_S, "node1", "node0")


def test_a_rate_is_changed_and_lifted(two):
    two.set_rate(0, 2e6)
    assert near(two, 2e6)
    two.set_rate(0, None)
    two.set_rate(1, None)
    assert moved(two, "node0", "node1", 20_000_000)[1] > 4 * RATE_B_PER_S


@pytest.mark.parametrize("rate", [2e6, RATE_B_PER_S, 4e7])
def test_a_link_that_carries_what_was_asked_is_verified(two, rate):
    two.set_rate(0, rate)
    assert two.verify(0, rate) == pytest.approx(rate, rel=0.05)


def test_a_link_that_carries_something_else_is_refused(two, monkeypatch):
    monkeypatch.setattr(module, "PROBE_S", (0.1, 0.4))
    two.set_rate(0, 4e6)
    with pytest.raises(Unavailable) as less:
        two.verify(0, RATE_B_PER_S)
    said = r"link node0-switch is shaped to 40 Mbit/s but carries ([\d.]+): this machine cannot carry more"
    assert float(re.fullmatch(said, str(less.value))[1]) <= 32 * 1.05
    two.set_rate(0, 7e6)
    with pytest.raises(Unavailable, match=r"is shaped to 40 Mbit/s but carries 5.*: it is not shaped"):
        two.verify(0, RATE_B_PER_S)


def test_a_rate_above_what_the_machine_carries_is_refused(two, monkeypatch):
    monkeypatch.setattr(module, "PROBE_S", (0.4,))
    two.set_rate(0, None)
    refused = r"shaped to 8e\+06 Mbit/s but carries .*: this machine cannot carry more"
    with pytest.raises(Unavailable, match=refused):
        two.verify(0, 1e12)
    with pytest.raises(
        Unavailable, match=r"^the network cannot be shaped: tbf shapes links of .* Mbit/s, not"
    ):
        two.set_rate(0, 1e12)
    with pytest.raises(TopologyError, match=r"^link node0-switch: its rate -1 B/s is not above 0$"):
        two.set_rate(0, -1)


def test_bytes_sent_are_those_that_were_given(two):
    count = 3_000_000
    before = two.sent()
    moved(two, "node0", "node1", count)
    grown = [[b - a for a, b in zip(*ends, strict=True)] for ends in zip(before, two.sent(), strict=True)]
    (there, back), (from_node1, to_node1) = grown
    for sent in (there, to_node1):
        assert count < sent < 1.01 * count * FRAME_B / SEGMENT_B + 10_000
    for sent in (back, from_node1):
        assert 0 < sent < 0.1 * count


def test_a_segment_that_is_lost_is_counted_where_it_is_sent_again():
    """A switch that forwards nothing: TCP asks once, and after a second once more (RFC 6298)."""
    with Network(two_nodes(RATE_B_PER_S)) as network:
        assert network.retransmitted() == [0, 0]
        forget = "echo 0 > /proc/sys/net/ipv4/ip_forward"
        subprocess.run(network.command("switch", ["sh", "-c", forget]), check=True, timeout=60)
        knock = script(network, "node0", KNOCK, network.address("node1"))
        assert subprocess.run(knock, capture_output=True, timeout=60).stdout == b"no answer\n"
        assert network.retransmitted() == [1, 0]


def test_connections_spread_over_all_routes_of_a_fabric():
    count, times = 50_000, 64
    with Network(FABRIC) as network:
        for there, back in (("h0", "h3"), ("h2", "h0")):
            before = dict(zip(FABRIC.links, network.sent(), strict=True))
            moved(network, there, back, count, times)
            after = dict(zip(FABRIC.links, network.sent(), strict=True))
            leaf = LEAVES[FABRIC.hosts.index(there) // 2]
            up = {one.other: after[one][0] - before[one][0] for one in FABRIC.links if one.one == leaf}
            assert set(up) == set(SPINES)
            assert min(up.values()) > count
            assert count * times < sum(up.values()) < 1.2 * count * times


def test_two_networks_do_not_disturb_each_other(two):
    with Network(two_nodes(RATE_B_PER_S)) as other:
        assert other.address("node1") == two.address("node1")
        before = two.sent()
        other.set_rate(0, None)
        assert moved(other, "node0", "node1", 1_000_000)[0] == 1_000_000
        assert sum(map(sum, two.sent())) - sum(map(sum, before)) < 20_000
    assert near(two, RATE_B_PER_S)


def test_a_host_that_does_not_answer_is_reported_in_one_line():
    with Network(two_nodes(RATE_B_PER_S)) as network:
        subprocess.run(script(network, "node1", DOWN, network.interface("node1")), check=True, timeout=60)
        with pytest.raises(
            Unavailable, match=r"^link switch-node1 carries nothing|^link node1-switch"
        ) as error:
            network.verify(1, RATE_B_PER_S)
    assert len(str(error.value).splitlines()) == 1


def test_with_a_receive_buffer_no_more_is_in_flight_and_this_process_keeps_its_own():
    """What a receiver that reads nothing lets in, and what the kernel says of the way."""
    setting = Path("/proc/sys/net/ipv4/tcp_rmem")
    before = setting.read_text()
    with Network(two_nodes(RATE_B_PER_S), 16 << 10) as network:
        assert setting.read_text() == before
        ways = subprocess.run(
            network.command("node0", ["ip", "route", "get", network.address("node1")]),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "rto_min lock 1s" in ways.stdout
        assert 0 < _taken_unread(network) <= 16 << 10
        carried = max(network.verify(0, None) for _ in range(ATTEMPTS))  # on a busy machine less at times
        assert 0.8 * RATE_B_PER_S < carried < 1.05 * RATE_B_PER_S
        said = [_setting(network, name) for name in CREDITS]
        assert said == list(CREDITS.values())


def _setting(network, name):
    read = network.command("node1", ["cat", f"/proc/sys/net/ipv4/{name}"])
    return subprocess.run(read, capture_output=True, text=True, check=True).stdout.strip()


def _taken_unread(network):
    """Return bytes that node1's kernel acknowledges to node0 though nobody reads them there."""
    receive = subprocess.Popen(
        network.command("node1", [sys.executable, "-c", UNREAD, network.address("node1")]),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    port = receive.stdout.readline().strip()
    send = network.command("node0", [sys.executable, "-c", PUSH, network.address("node1"), port])
    try:
        return int(subprocess.run(send, capture_output=True, text=True, check=True).stdout)
    finally:
        receive.kill()
        receive.wait()
