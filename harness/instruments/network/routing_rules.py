"""Routes of packets through a network of `harness.instruments.network.topology`, as data.

Pure; `harness.instruments.network.emulated_network` installs them in the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from harness.instruments.network.topology import Topology, TopologyError


class Steer(NamedTuple):
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


def check_steers(topology: Topology, steers: Iterable[Steer]) -> None:
    """Raise TopologyError where a rule names what does not exist, or leads no nearer to its host."""
    hosts, switches = (", ".join(nodes) for nodes in (topology.hosts, topology.switches))
    for steer in steers:
        said = f"at {steer.switch} to {steer.host}"
        if steer.switch not in topology.switches:
            raise TopologyError(f"{said}: '{steer.switch}' is not a switch; allowed: {switches}")
        for host in (steer.host, steer.source):
            if host is not None and host not in topology.hosts:
                raise TopologyError(f"{said}: there is no host '{host}'; allowed: {hosts}")
        ends = dict(topology.around(steer.switch))
        if steer.link not in ends:
            raise TopologyError(
                f"{said}: link {steer.link} is none of its links, {', '.join(map(str, ends))}"
            )
        far = topology.distances(steer.host)
        if far[ends[steer.link]] >= far[steer.switch]:
            raise TopologyError(f"{said}: by {ends[steer.link]} packets come no nearer, and may go in a loop")
