"""A network of namespaces: real bytes against what was asked of it, and that nothing is left of it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marked import marked, running, wait_for, wait_until_none
from moved import ATTEMPTS, moved, needs_namespaces, script
from places import PYTHONPATH

from harness.instruments.network import emulated_network as module
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import Flow, Link, RouteRule, Topology, two_nodes
from harness.records import Unavailable

RATE_B_PER_S = 5e6
FRAME_B, SEGMENT_B = 1514, 1448  # Ethernet, and the data in it behind IPv4 and TCP with a time stamp


@pytest.fixture(scope="module", autouse=True)
def _needs_namespaces():
    needs_namespaces()


@pytest.fixture(scope="module")
def two_at_any_rate():
    with Network(two_nodes(RATE_B_PER_S)) as network:
        yield network


@pytest.fixture
def two(two_at_any_rate):
    yield two_at_any_rate
    for link in range(2):
        two_at_any_rate.set_rate(link, RATE_B_PER_S)


def near(network, rate_B_per_s, sender="node0", receiver="node1"):
    """Return whether frames of that many bytes per second carry what the receiver sees."""
    size_B = int(0.4 * rate_B_per_s)
    for _ in range(ATTEMPTS):
        came, rate = moved(network, sender, receiver, size_B)
        assert came == size_B
        if abs(rate * FRAME_B / SEGMENT_B / rate_B_per_s - 1) < 0.05:
            return True
    return False


def test_a_link_carries_what_was_asked_either_way_and_is_verified_to(two):
    assert near(two, RATE_B_PER_S, "node1", "node0")
    for rate in (2e6, 4e7):
        two.set_rate(0, rate)
        assert two.verify(0, rate) == pytest.approx(rate, rel=0.05)
    two.set_rate(1, None)
    assert moved(two, "node0", "node1", 20_000_000)[1] > 4 * RATE_B_PER_S


def test_a_link_that_carries_something_else_or_cannot_be_shaped_is_refused(two, monkeypatch):
    monkeypatch.setattr(module, "PROBE_S", (0.1, 0.4))
    two.set_rate(0, 4e6)
    with pytest.raises(Unavailable) as less:
        two.verify(0, RATE_B_PER_S)
    said = r"link node0-switch is shaped to 40 Mbit/s but carries ([\d.]+): this machine cannot carry more"
    assert float(re.fullmatch(said, str(less.value))[1]) <= 32 * 1.05
    two.set_rate(0, 7e6)
    with pytest.raises(Unavailable, match=r"is shaped to 40 Mbit/s but carries 5.*: it is not shaped"):
        two.verify(0, RATE_B_PER_S)
    with pytest.raises(Unavailable, match=r"tbf shapes links of .* Mbit/s, not"):
        two.set_rate(0, 1e12)


KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=1.6)
except TimeoutError:
    print("no answer")
"""
DOWN = """
import sys
from pyroute2 import IPRoute
with IPRoute() as kernel:
    kernel.link("set", index=kernel.link_lookup(ifname=sys.argv[1])[0], state="down")
"""


def test_a_lost_segment_is_counted_where_it_is_sent_again_and_a_dead_host_is_reported():
    """A switch that forwards nothing: TCP asks once, and after a second once more (RFC 6298)."""
    with Network(two_nodes(RATE_B_PER_S)) as network:
        assert network.retransmitted() == [0, 0]
        forget = "echo 0 > /proc/sys/net/ipv4/ip_forward"
        subprocess.run(network.command("switch", ["sh", "-c", forget]), check=True, timeout=60)
        knock = script(network, "node0", KNOCK, network.address("node1"))
        assert subprocess.run(knock, capture_output=True, timeout=60).stdout == b"no answer\n"
        assert network.retransmitted() == [1, 0]
        subprocess.run(script(network, "node1", DOWN, network.interface("node1")), check=True, timeout=60)
        with pytest.raises(Unavailable, match=r"^link (switch-node1 carries nothing|node1-switch).*\Z"):
            network.verify(1, RATE_B_PER_S)


def output(network, node, *command):
    return subprocess.run(network.command(node, command), capture_output=True, text=True, check=True).stdout


def test_with_a_receive_buffer_the_link_is_filled_and_this_process_keeps_its_own():
    setting = Path("/proc/sys/net/ipv4/tcp_rmem")
    before = setting.read_text()
    with Network(two_nodes(RATE_B_PER_S), 16 << 10) as network:
        assert setting.read_text() == before
        there = network.address("node1")
        assert "rto_min lock 1s" in output(network, "node0", "ip", "route", "get", there)
        settings = ("tcp_congestion_control", "tcp_moderate_rcvbuf", "tcp_early_retrans")
        read = output(network, "node1", "cat", *(f"/proc/sys/net/ipv4/{name}" for name in settings))
        assert read.split() == ["reno", "0", "0"]
        assert near(network, RATE_B_PER_S)


# A fabric, whose switches hash or follow rules. That packets go where the kernel reports: test_fabric.

LEAVES, SPINES = ("leaf0", "leaf1"), ("spine0", "spine1", "spine2", "spine3")
FABRIC = Topology(
    ("h0", "h1", "h2", "h3"),
    LEAVES + SPINES,
    (
        *(Link(f"h{i}", LEAVES[i // 2]) for i in range(4)),
        *(Link(leaf, spine, 1e6) for leaf in LEAVES for spine in SPINES),
    ),
)
UPLINKS = range(4, 8)  # leaf0's, by spine


@pytest.fixture(scope="module")
def hashing_ports():
    with Network(FABRIC) as network:
        yield network


@pytest.fixture
def fabric(hashing_ports):
    yield hashing_ports
    hashing_ports.hash_ports(ports=True)
    hashing_ports.set_rules([])


def egress(network, count, host=0):
    ports = range(40000, 40000 + count)
    return network.egress_links([Flow("leaf0", host, f"h{host}", port, "h2", 5000) for port in ports])


def test_connections_spread_by_ports_and_go_one_way_by_addresses_alone(fabric):
    spread = egress(fabric, 200)
    assert set(spread) == set(UPLINKS)
    assert max(map(spread.count, UPLINKS)) < 90
    fabric.hash_ports(ports=False)
    assert len(set(egress(fabric, 200))) == 1


def test_what_is_steered_goes_there_and_no_more_after_the_next_call(fabric):
    link, other = 4, 7
    spread = egress(fabric, 12)
    fabric.set_rules([RouteRule("leaf0", "h2", link)])
    assert egress(fabric, 12) == [link] * 12
    fabric.set_rules([RouteRule("leaf0", "h2", other, "h1"), RouteRule("leaf1", "h0", 8)])
    assert egress(fabric, 12, host=1) == [other] * 12
    assert egress(fabric, 12) == spread
    fabric.set_rules([RouteRule("leaf0", "h2", link), RouteRule("leaf0", "h2", other, "h1")])
    assert egress(fabric, 1) + egress(fabric, 1, host=1) == [link, other]
    fabric.set_rules([])
    assert egress(fabric, 12) == spread


# What a network needs, and what is left of it.


@pytest.fixture
def mark(monkeypatch):
    mark = marked(monkeypatch)
    yield mark
    wait_until_none(mark)
    assert not named(os.getpid())


def named(pid):
    """Return the named namespaces and mounts with that process's prefix that other processes see."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [*Path("/run/netns").glob(f"harness{pid}-*"), *(one for one in mounts if f"harness{pid}-" in one)]


ENVIRONMENT = {"PYTHONPATH": PYTHONPATH}
WITHOUT_ROOT = """
from moved import moved
from harness.instruments.network.emulated_network import Network, privileges
from harness.instruments.network.topology import two_nodes
assert "--user" in privileges(), privileges()
with Network(two_nodes(5e6)) as network:
    assert abs(network.verify(1, 5e6) / 5e6 - 1) < 0.05
    before = network.sent()[0][0]
    assert moved(network, "node0", "node1", 100_000)[0] == 100_000
    assert network.sent()[0][0] - before > 100_000
print("made")
"""
UNPRIVILEGED = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"] if not os.geteuid() else []


def test_it_works_without_root_where_the_kernel_allows(mark):
    tried = ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"]
    if subprocess.run(tried, capture_output=True).returncode:
        pytest.skip("no user namespaces")
    command = [*UNPRIVILEGED, sys.executable, "-c", WITHOUT_ROOT]
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=200
    )
    assert (done.stdout, done.stderr) == ("made\n", "")


def test_a_program_that_is_missing_is_named_and_leaves_nothing(tmp_path, monkeypatch, mark):
    for program in ("unshare", "mount"):
        (tmp_path / program).symlink_to(shutil.which(program))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"^networks of namespaces need the program nsenter \(Debian: "):
        Network(two_nodes(1e6))


@pytest.mark.parametrize("word", ["--kill-child", "harness.instruments.network.netns_server"])
def test_a_network_whose_process_was_killed_names_that_and_leaves_nothing(mark, word):
    with Network(two_nodes(1e6)) as network:
        running(mark, word)[0].kill()
        with pytest.raises(Unavailable, match=r"^the network's server process ended"):
            wait_for(lambda: network.sent() and False)
        wait_until_none(mark)
    with pytest.raises(Unavailable, match=r"^the network is closed$"):
        network.sent()


OWNER = """
import signal
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import two_nodes
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where make runs in the background
with Network(two_nodes(5e6)) as network:
    print("made", flush=True)
    while True:
        network.verify(0, None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_owner_is_the_end_of_the_network(mark, number):
    command = [sys.executable, "-c", OWNER]
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as owner:
        assert owner.stdout.readline() == b"made\n"
        wait_for(lambda: running(mark, "receive"))
        assert not named(owner.pid)
        owner.send_signal(number)
        assert owner.wait(60) != 0
    wait_until_none(mark)
    assert not named(owner.pid)
