"""A network as data: hosts, switches and links with rates, and the addresses and routes that follow.

`harness.instruments.network.emulated_network` builds one from namespaces. In these, TCP can be a sender with
credits, for links meant to lose nothing: a collective library announces its receiver's buffers before data is
sent, and RoCE's links pause instead of dropping. Default TCP takes what it can get, infers losses from long
queues and retransmits: links then carry what a fluid would not, and shares are uneven. With credits a
connection has at most its receiver's small, fixed buffer in flight, grows to it by slow start (reno), and
does not retransmit what only waits: no tail-loss probe, no timeout within a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import NamedTuple

SUBNETS = IPv4Network("10.128.0.0/9")  # private addresses (RFC 1918) of the run alone: one /30 per link
FRAME_B = 1514  # an Ethernet frame of 1,500 bytes and its header; what tbf counts
ETHERNET_B = 14
LARGEST_FRAME_B = 65535 + ETHERNET_B  # IPv4's; costs the processors less, as links that cut data
BURST_S = 0.002  # burst of a link: what it saves up in this time


class Link(NamedTuple):
    """A wire between two nodes; `rate_B_per_s` applies to each direction, None: what the machine carries."""

    one: str
    other: str
    rate_B_per_s: float | None = None


class Route(NamedTuple):
    """A route to a host, by its subnet: any of `gateways`; packets of one flow use one of them."""

    subnet: IPv4Network
    gateways: tuple[IPv4Address, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts with a link each, and switches; names of at most 12 characters. `frame_B`: with its header."""

    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]
    frame_B: int = FRAME_B

    @classmethod
    def star(cls, hosts: tuple[str, ...]) -> Topology:
        """Return hosts with a link each to a switch, two with a link between them; frames are large."""
        if len(hosts) == 2:
            return cls(hosts, (), (Link(*hosts),), LARGEST_FRAME_B)
        return cls(hosts, ("switch",), tuple(Link(host, "switch") for host in hosts), LARGEST_FRAME_B)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return hosts, then switches."""
        return self.hosts + self.switches

    def address(self, node: str, link: int) -> IPv4Address:
        """Return the node's address on the link of that index."""
        subnet = self.subnet(link)
        return subnet[1] if self.links[link].one == node else subnet[2]

    def subnet(self, link: int) -> IPv4Network:
        """Return the link's own addresses."""
        return IPv4Network((int(SUBNETS.network_address) + 4 * link, 30))

    def link_of(self, host: str) -> int:
        """Return the index of the host's only link."""
        return next(index for index, link in enumerate(self.links) if host in link[:2])

    def host_address(self, host: str) -> IPv4Address:
        """Return the address by which others reach the host."""
        return self.address(host, self.link_of(host))

    def routes(self, node: str) -> list[Route]:
        """Return the routes to every host that is not a neighbour: all shortest ones, of equal weight."""
        routes, around = [], dict(self.around(node))
        for host in self.hosts:
            if node != host and self.link_of(host) not in around:
                far = self.distances(host)
                nearer = [index for index, one in around.items() if far.get(one, len(far)) == far[node] - 1]
                gateways = tuple(self.address(around[index], index) for index in nearer)
                routes.append(Route(self.subnet(self.link_of(host)), gateways))
        return routes

    def around(self, node: str) -> Iterator[tuple[int, str]]:
        """Return the index of each of the node's links, and the node at its other end."""
        for index, link in enumerate(self.links):
            if node in link[:2]:
                yield index, link.other if link.one == node else link.one

    def distances(self, start: str) -> dict[str, int]:
        """Return the number of links from `start` to every node that it reaches; hosts forward nothing."""
        far, queue = {start: 0}, deque([start])
        while queue:
            node = queue.popleft()
            if node in self.hosts and node != start:
                continue
            for _, neighbour in self.around(node):
                if neighbour not in far:
                    far[neighbour] = far[node] + 1
                    queue.append(neighbour)
        return far


def burst_B(rate_B_per_s: float, frame_B: int) -> int:
    """Return what a shaped link sends above its rate after a pause: at least two frames."""
    return max(round(BURST_S * rate_B_per_s), 2 * frame_B)


def two_nodes(rate_B_per_s: float | None) -> Topology:
    """Return two hosts on one switch, each with a link of that rate."""
    links = tuple(Link(host, "switch", rate_B_per_s) for host in ("node0", "node1"))
    return Topology(("node0", "node1"), ("switch",), links)


class RouteRule(NamedTuple):
    """A rule: at `switch` packets for `host` leave by that link; with a source, only those of that host."""

    switch: str
    host: str
    link: int
    source: str | None = None


class Flow(NamedTuple):
    """A TCP connection's packets in one direction, as they arrive at `switch` by `link`."""

    switch: str
    link: int
    source: str
    source_port: int
    destination: str
    destination_port: int


SYSCTLS = Path("/proc/sys/net/ipv4")

RTO_MIN_S = 1.0
"""Least retransmission timeout: as long as a queue of 6 MB lasts at 50 Mbit/s. With the kernel's 0.2 s a
sender would retransmit what only waits. A frame lost to a full queue or to the kernel's backlog (1,000
packets by default, net.core.netdev_max_backlog) may cost this long."""

FIRST_FRAMES = 2  # of a connection (the kernel: ten): more would overrun that backlog
RTO_MIN = 13  # RTAX_RTO_MIN of linux/rtnetlink.h: its bit makes TCP keep a route's value
METRICS = {"lock": 1 << RTO_MIN, "rto_min": round(RTO_MIN_S * 1e3), "initcwnd": FIRST_FRAMES}
"""Metrics of a route, for the kernel: milliseconds, frames."""


def limit_window(receive_buffer_B: int) -> None:
    """Set the window of connections opened from now on in this thread's namespace (ip-sysctl.rst)."""
    (SYSCTLS / "tcp_congestion_control").write_text("reno")
    (SYSCTLS / "tcp_moderate_rcvbuf").write_text("0")
    (SYSCTLS / "tcp_rmem").write_text(" ".join([str(receive_buffer_B)] * 3))
    (SYSCTLS / "tcp_early_retrans").write_text("0")
