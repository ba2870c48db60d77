"""Routes of packets through a network of `harness.instruments.network.topology`, as data.

Pure; `harness.instruments.network.emulated_network` installs them in the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from harness.instruments.network.topology import Topology, TopologyError


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


def validate_rules(topology: Topology, rules: Iterable[RouteRule]) -> None:
    """Raise TopologyError where a rule names what does not exist, or leads no nearer to its host."""
    hosts, switches = (", ".join(nodes) for nodes in (topology.hosts, topology.switches))
    for rule in rules:
        where = f"at {rule.switch} to {rule.host}"
        if rule.switch not in topology.switches:
            raise TopologyError(f"{where}: '{rule.switch}' is not a switch; allowed: {switches}")
        for host in (rule.host, rule.source):
            if host is not None and host not in topology.hosts:
                raise TopologyError(f"{where}: there is no host '{host}'; allowed: {hosts}")
        ends = dict(topology.around(rule.switch))
        if rule.link not in ends:
            raise TopologyError(
                f"{where}: link {rule.link} is not one of its links, {', '.join(map(str, ends))}"
            )
        far = topology.distances(rule.host)
        if far[ends[rule.link]] >= far[rule.switch]:
            raise TopologyError(f"{where}: by {ends[rule.link]} packets come no nearer, and may go in a loop")
