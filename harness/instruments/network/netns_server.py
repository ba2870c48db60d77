"""The server inside the namespaces of `emulated_network`, which builds a network of further namespaces.

`python -m harness.instruments.network.netns_server PREFIX`: requests are lines of JSON on standard input,
each answered by a line on standard output; it ends with its input. What it makes is in its own mount and
network namespaces, so that the kernel clears all of it with the last process in them.

Switches choose between routes as in the kernel; `ip` of iproute2 names the route of a connection.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, netns
from pyroute2.netlink.exceptions import NetlinkError

from harness.instruments.network.topology import (
    ETHERNET_B,
    METRICS,
    SYSCTLS,
    Flow,
    Link,
    RouteRule,
    Topology,
    burst_B,
    limit_window,
)

HASH_POLICY, HASH_FIELDS = SYSCTLS / "fib_multipath_hash_policy", SYSCTLS / "fib_multipath_hash_fields"
BY_ADDRESSES, BY_FIELDS = "0", "3"
FIVE_TUPLE = "0x37"
"""Fields of the hash: both addresses, protocol, both ports (Documentation/networking/ip-sysctl.rst; Linux
5.14). Policy 1 would take a hash that the sending socket draws at random, and again on retransmission, where
packets never leave the machine: a route that cannot be predicted and that changes under load."""

FIRST_TABLE = 1000  # first of the routing tables for rules; the kernel's own are below 256
PER_SOURCE, FOR_ALL = 100, 200  # priorities of rules; the main table (32766) comes last


def hash_here(ports: bool) -> None:
    """Make this thread's namespace hash connections by addresses and ports, or by addresses alone."""
    if not HASH_FIELDS.exists():
        raise ValueError(
            "this kernel does not spread connections by ports (Linux 5.14, CONFIG_IP_ROUTE_MULTIPATH)"
        )
    HASH_FIELDS.write_text(FIVE_TUPLE)
    HASH_POLICY.write_text(BY_FIELDS if ports else BY_ADDRESSES)


def _forget(kernel: IPRoute) -> None:
    for rule in list(kernel.get_rules(family=socket.AF_INET)):
        table, source = rule.get_attr("FRA_TABLE"), rule.get_attr("FRA_SRC")
        if table is not None and table >= FIRST_TABLE:
            kernel.flush_routes(table=table, family=socket.AF_INET)
            named = {} if source is None else {"src": source, "src_len": 32}
            kernel.rule("del", table=table, priority=rule.get_attr("FRA_PRIORITY"), **named)


NAMESPACES = "/run/netns"
QUEUE_B = 8 << 20
"""Queue of a link before it drops: more than TCP sends at once, because a lost frame costs a retransmission
timeout of 200 ms, which would be measured in place of the link."""

AHEAD_S, AHEAD_B = 0.005, 16 << 10
"""How far a connection may be ahead of the link: what the link sends in this time, at least this many bytes.
With the kernel's 4 MiB a slow link's queue would last seconds, and TCP would retransmit what only waits."""

UNSHAPED_AHEAD_B = 4 << 20  # the kernel's own

SLOWEST_B_PER_S, FASTEST_B_PER_S = 1e3, 2.0**32 - 1
"""Rates that tbf takes: its rate has 32 bits, and so have the ticks of 64 ns in which its burst is sent."""

HANDLE = 0x10000  # handle 1:0, by which the queueing discipline is found again


def interface(link: int) -> str:
    """Return a node's name for its end of the link."""
    return f"link{link}"


class NetnsServer:
    """The nodes' namespaces, with a netlink socket in each."""

    def __init__(
        self, prefix: str, stack: ExitStack, topology: dict[str, Any], receive_buffer_B: int | None
    ) -> None:
        links = tuple(map(Link._make, topology["links"]))
        parts = (tuple(topology["hosts"]), tuple(topology["switches"]), links)
        self._topology = Topology(*parts, topology["frame_B"])
        self._names = {node: f"{prefix}-{node}" for node in self._topology.nodes}
        self._kernels: dict[str, IPRoute] = {}
        for node, name in self._names.items():
            netns.create(name)
            self._configure(name, forwards=node in self._topology.switches)
            if receive_buffer_B is not None:
                with entered(name):
                    limit_window(receive_buffer_B)
            self._kernels[node] = stack.enter_context(IPRoute(netns=name))
        for index in range(len(links)):
            self._add_link(index)
        metrics = {} if receive_buffer_B is None else {"metrics": METRICS}
        for node, kernel in self._kernels.items():
            kernel.link("set", index=kernel.link_lookup(ifname="lo")[0], state="up")
            for route in self._topology.routes(node):
                hops = [{"gateway": str(one), "hops": 0} for one in route.gateways]
                kernel.route("add", dst=str(route.subnet), multipath=hops, **metrics)
        for index, link in enumerate(links):
            self.rate(index, link.rate_B_per_s)

    def rate(self, link: int, rate_B_per_s: float | None) -> None:
        """Shape both directions of the link, or remove its shaping."""
        if rate_B_per_s is not None and not SLOWEST_B_PER_S <= rate_B_per_s <= FASTEST_B_PER_S:
            bounds = f"{SLOWEST_B_PER_S * 8e-6:g} to {FASTEST_B_PER_S * 8e-6:.0f} Mbit/s"
            raise ValueError(f"tbf shapes links of {bounds}, not of {rate_B_per_s * 8e-6:.6g}")
        for node in self._topology.links[link][:2]:
            kernel, device = self._device(node, link)
            ahead = UNSHAPED_AHEAD_B if rate_B_per_s is None else max(round(AHEAD_S * rate_B_per_s), AHEAD_B)
            with entered(self._names[node]):
                Path("/proc/sys/net/ipv4/tcp_limit_output_bytes").write_text(str(ahead))
            if rate_B_per_s is None:
                _unshape(kernel, device)
                continue
            rate = round(rate_B_per_s)
            burst = burst_B(rate, self._topology.frame_B)
            kernel.tc("replace", "tbf", index=device, handle=HANDLE, rate=rate, burst=burst, limit=QUEUE_B)

    def hash_by(self, ports: bool) -> None:
        """Make switches hash connections by addresses and ports, or by addresses alone."""
        for node in self._topology.switches:
            with entered(self._names[node]):
                hash_here(ports)

    def set_rules(self, rules: list[list[Any]]) -> None:
        """Install routes for the rules, in place of all earlier ones."""
        topology = self._topology
        for node in topology.switches:
            _forget(self._kernels[node])
        tables: dict[tuple[str, str | None], int] = {}
        for one in map(RouteRule._make, rules):
            kernel, ends = self._kernels[one.switch], dict(topology.around(one.switch))
            place = (one.switch, one.source)
            if place not in tables:
                tables[place] = FIRST_TABLE + len(tables)
                rule: dict[str, Any] = {"table": tables[place], "priority": FOR_ALL}
                if one.source is not None:
                    source = str(topology.host_address(one.source))
                    rule |= {"priority": PER_SOURCE, "src": source, "src_len": 32}
                kernel.rule("add", **rule)
            gateway = topology.address(ends[one.link], one.link)
            subnet = str(topology.subnet(topology.link_of(one.host)))
            kernel.route("replace", dst=subnet, gateway=str(gateway), table=tables[place])

    def egress_links(self, flows: list[list[Any]]) -> list[int]:
        """Return the link by which each flow leaves its switch, by the kernel's own choice."""
        if shutil.which("ip") is None:
            raise ValueError("finding a connection's route needs the program ip (Debian: iproute2)")
        every = list(map(Flow._make, flows))
        links: dict[Flow, int] = {}
        for switch in {flow.switch for flow in every}:
            mine = [flow for flow in every if flow.switch == switch]
            commands = "".join(map(self._route_get, mine))
            with entered(self._names[switch]):
                command = ["ip", "-json", "-batch", "-"]
                done = subprocess.run(command, input=commands, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ValueError(f"{switch} has no route: {done.stderr.strip().splitlines()[0]}")
            by_name = {interface(link): link for link, _ in self._topology.around(switch)}
            devices = [json.loads(line)[0]["dev"] for line in done.stdout.splitlines()]
            links |= dict(zip(mine, (by_name[device] for device in devices), strict=True))
        return [links[flow] for flow in every]

    def _route_get(self, flow: Flow) -> str:
        """Return the command of ip(8) that asks for a flow's route at its switch."""
        source, destination = map(self._topology.host_address, (flow.source, flow.destination))
        return (
            f"route get {destination} from {source} iif {interface(flow.link)} ipproto tcp "
            f"sport {flow.source_port} dport {flow.destination_port}\n"
        )

    def sent(self) -> list[list[int]]:
        """Return the bytes that each link's ends have sent, frame headers included."""
        return [
            [self._sent(node, index) for node in link[:2]] for index, link in enumerate(self._topology.links)
        ]

    def retransmitted(self) -> list[int]:
        """Return the TCP segments that each host has retransmitted."""
        return [self._sent_again(host) for host in self._topology.hosts]

    def _add_link(self, index: int) -> None:
        one, other = self._topology.links[index][:2]
        name = interface(index)
        peer = {"ifname": name, "net_ns_fd": self._names[other]}
        self._kernels[one].link("add", ifname=name, kind="veth", peer=peer)
        for node in (one, other):
            kernel, device = self._device(node, index)
            address = str(self._topology.address(node, index))
            kernel.addr("add", index=device, address=address, prefixlen=30)
            kernel.link("set", index=device, state="up", mtu=self._topology.frame_B - ETHERNET_B)

    def _device(self, node: str, link: int) -> tuple[IPRoute, int]:
        kernel = self._kernels[node]
        return kernel, kernel.link_lookup(ifname=interface(link))[0]

    def _sent(self, node: str, link: int) -> int:
        kernel, device = self._device(node, link)
        (attributes,) = kernel.get_links(device)
        return int(attributes.get_attr("IFLA_STATS64")["tx_bytes"])

    def _sent_again(self, host: str) -> int:
        with entered(self._names[host]):
            lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        return int(values[names.index("RetransSegs")])

    def _configure(self, name: str, forwards: bool) -> None:
        """Configure a node: a switch forwards packets, and no reverse-path check is made.

        Of several routes a connection takes one by its addresses and ports, as in real switches; by the
        kernel's default all connections between two hosts would share one.
        """
        with entered(name):
            with suppress(ValueError):  # a kernel without it reports so where a route needs it
                hash_here(ports=True)
            for way in ("all", "default"):
                Path(f"/proc/sys/net/ipv4/conf/{way}/rp_filter").write_text("0")
            if forwards:
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


@contextmanager
def entered(name: str) -> Iterator[None]:
    """Move this thread into the namespace, and back."""
    netns.pushns(name)
    try:
        yield
    finally:
        netns.popns()


def _unshape(kernel: IPRoute, device: int) -> None:
    if any(one.get_attr("TCA_KIND") == "tbf" for one in kernel.get_qdiscs(device)):
        kernel.tc("del", index=device, root=True, handle=HANDLE)


def error_text(error: Exception, doing: str) -> str:
    """Return the error in one line; ENOENT from a queueing discipline means that the kernel lacks it."""
    if isinstance(error, NetlinkError) and doing in ("build", "rate"):
        if error.code == errno.ENOENT:
            return "this kernel has no tbf queueing discipline (module sch_tbf), which shapes links"
        if error.code == errno.EOPNOTSUPP:
            return "this kernel has no veth devices (module veth), which links are made of"
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{error}".splitlines()[0]


def main() -> None:
    """Answer until the input ends: a new network by the process that owns its namespaces."""
    server = None
    Path(NAMESPACES).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for line in sys.stdin:
            request = json.loads(line)
            do = request.pop("do")
            try:
                if do == "build":
                    server = NetnsServer(sys.argv[1], stack, **request)
                    answer: Any = os.getpid()
                else:
                    answer = getattr(server, do)(**request)
                reply: dict[str, Any] = {"answer": answer}
            except Exception as error:
                reply = {"error": error_text(error, do)}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
