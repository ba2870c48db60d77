"""Inside a network of namespaces: how switches choose between routes, and which one they chose.

Used by `harness.instruments.network.netns_server`; needs iproute2's `ip` to ask the kernel for a
connection's route.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from harness.instruments.network.topology import Flow, RouteRule, Topology

SYSCTLS = Path("/proc/sys/net/ipv4")
HASH_POLICY, HASH_FIELDS = SYSCTLS / "fib_multipath_hash_policy", SYSCTLS / "fib_multipath_hash_fields"
BY_ADDRESSES, BY_FIELDS = "0", "3"
FIVE_TUPLE = "0x37"
"""Fields of the hash: both addresses, protocol, both ports (Documentation/networking/ip-sysctl.rst; Linux
5.14). Policy 1 would take a hash that the sending socket draws at random, and again on retransmission, where
packets never leave the machine: a route that cannot be predicted and that changes under load."""

FIRST_TABLE = 1000
"""First of the routing tables for rules; the kernel's own are below 256."""

Entered = Callable[[str], AbstractContextManager[None]]
"""A context that moves this thread into a node's namespace and back."""

PER_SOURCE, FOR_ALL = 100, 200
"""Priorities of rules: those for one source come first, the main table (32766) last."""


def hash_by(switches: Iterable[str], entered: Entered, ports: bool) -> None:
    """Make switches hash connections by addresses and ports, or by addresses alone."""
    for node in switches:
        with entered(node):
            hash_here(ports)


def hash_here(ports: bool) -> None:
    """Set the same for the namespace that this thread is in."""
    if not HASH_FIELDS.exists():
        raise ValueError(
            "this kernel does not spread connections by ports (Linux 5.14, CONFIG_IP_ROUTE_MULTIPATH)"
        )
    HASH_FIELDS.write_text(FIVE_TUPLE)
    HASH_POLICY.write_text(BY_FIELDS if ports else BY_ADDRESSES)


def set_rules(topology: Topology, kernels: Mapping[str, IPRoute], rules: Sequence[RouteRule]) -> None:
    """Install routes for the rules, in place of all earlier ones."""
    for node in topology.switches:
        _forget(kernels[node])
    tables: dict[tuple[str, str | None], int] = {}
    for one in rules:
        kernel, ends = kernels[one.switch], dict(topology.around(one.switch))
        place = (one.switch, one.source)
        if place not in tables:
            tables[place] = FIRST_TABLE + len(tables)
            rule: dict[str, Any] = {"table": tables[place], "priority": FOR_ALL}
            if one.source is not None:
                rule |= {"priority": PER_SOURCE, "src": str(topology.host_address(one.source)), "src_len": 32}
            kernel.rule("add", **rule)
        gateway = topology.address(ends[one.link], one.link)
        subnet = str(topology.subnet(topology.link_of(one.host)))
        kernel.route("replace", dst=subnet, gateway=str(gateway), table=tables[place])


def _forget(kernel: IPRoute) -> None:
    for rule in list(kernel.get_rules(family=socket.AF_INET)):
        table = rule.get_attr("FRA_TABLE")
        if table is not None and table >= FIRST_TABLE:
            kernel.flush_routes(table=table, family=socket.AF_INET)
            priority = rule.get_attr("FRA_PRIORITY")
            kernel.rule("del", table=table, priority=priority, **_source(rule))


def _source(rule: Any) -> dict[str, Any]:
    source = rule.get_attr("FRA_SRC")
    return {} if source is None else {"src": source, "src_len": 32}


def egress_links(topology: Topology, entered: Entered, flows: Sequence[Flow], interface: Any) -> list[int]:
    """Return the link by which each flow leaves its switch, by the kernel's own choice (`ip route get`)."""
    if shutil.which("ip") is None:
        raise ValueError("finding a connection's route needs the program ip (Debian: iproute2)")
    links: dict[Flow, int] = {}
    for switch in {flow.switch for flow in flows}:
        mine = [flow for flow in flows if flow.switch == switch]
        commands = "".join(
            f"route get {topology.host_address(one.destination)} from {topology.host_address(one.source)} "
            f"iif {interface(one.link)} ipproto tcp sport {one.source_port} dport {one.destination_port}\n"
            for one in mine
        )
        with entered(switch):
            done = subprocess.run(
                ["ip", "-json", "-batch", "-"], input=commands, capture_output=True, text=True, check=False
            )
        if done.returncode:
            raise ValueError(f"{switch} has no route: {done.stderr.strip().splitlines()[0]}")
        by_name = {interface(link): link for link, _ in topology.around(switch)}
        devices = [one["dev"] for one in _documents(done.stdout)]
        links |= dict(zip(mine, (by_name[device] for device in devices), strict=True))
    return [links[flow] for flow in flows]


def _documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of one JSON list after another."""
    decoder, at, documents = json.JSONDecoder(), 0, list[dict[str, Any]]()
    while at < len(text.rstrip()):
        document, at = decoder.raw_decode(text, at)
        documents += document
        while at < len(text) and text[at].isspace():
            at += 1
    return documents
