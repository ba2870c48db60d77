"""The ranks that all variants of a workload share: over emulated links, or in shared memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from typing import Any

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import LARGEST_FRAME_B, Link, Topology, burst_B
from suites.overlap import on_rank
from suites.overlap.subject import Subject
from suites.overlap.workload import Workload

ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
CALIBRATIONS = 7
"""Runs of which the median is taken, where a median of a few will do."""

ENOUGH_S = 0.5
"""How long these take together, where one does not take longer."""

LEAST_ROUNDS = 3
"""Rounds in which numbers of chunks are compared at least, however long a run takes."""

MEDIANS = 8
AGREE = 0.03
"""Two medians of the computation alone, by which the links' rate is chosen, must agree this closely."""

RUNS = 2


class OverlapCluster:
    """Ranks, and the links between them."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.variants: set[str] = set()
        self.rate_B_per_s: float | None = None
        self.port_B_per_s, self.sent_B = 0.0, 0.0
        self.least_s, self.at_once_s = 0.0, 0.0
        self._network: Network | None = None
        with ExitStack() as stack:
            if self.workload.is_linked:
                network = self._network = stack.enter_context(Network(topology_of(self.workload)))
                hosts = network.topology.hosts
                places = [
                    RankLocation(
                        network.command(host, []), {"GLOO_SOCKET_IFNAME": network.interface(host)} | ALONE
                    )
                    for host in hosts
                ]
                addresses = [network.address(host) for host in hosts]
            else:
                places, addresses = [RankLocation((), ALONE)] * self.workload.ranks, ["127.0.0.1"]
            self.pool = stack.enter_context(RankPool(places, addresses[0]))
            self.call("begin", addresses=addresses if self.workload.is_linked else None)
            stack.pop_all()

    def close(self) -> None:
        """End the ranks and remove the network."""
        self.pool.close()
        if self._network is not None:
            self._network.close()

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Return what `function` of `on_rank` returned on each rank."""
        return self.pool.call(f"{on_rank.__name__}:{function}", **arguments)

    def slowest_s(self, key: str, what: str, chunks: int, count: int = 1, calls: int = 1) -> list[float]:
        """Return seconds of each run of the slowest rank."""
        times = self.call("seconds", key=key, what=what, chunks=chunks, count=count, calls=calls)
        return [max(one) for one in zip(*times, strict=True)]

    def median_s(self, key: str, what: str, chunks: int, calls: int = 1) -> float:
        """Return the median of a few runs after one that is left out; fewer of a long operation."""
        (first_s,) = self.slowest_s(key, what, chunks, 1, calls)
        count = min(max(round(ENOUGH_S / (first_s * calls)), 1), CALIBRATIONS)
        return statistics.median(self.slowest_s(key, what, chunks, count, calls))

    def rounds_s(self, key: str, what: str, chunks: Sequence[int]) -> dict[int, list[float]]:
        """Return seconds of a few runs with each number of chunks, interleaved, after a first one."""
        first_s = {one: self.slowest_s(key, what, one)[0] for one in chunks}
        count = min(max(round(ENOUGH_S * len(chunks) / sum(first_s.values())), LEAST_ROUNDS), CALIBRATIONS)
        rounds = [{one: self.slowest_s(key, what, one)[0] for one in chunks} for _ in range(count)]
        return {one: [times[one] for times in rounds] for one in chunks}

    def settled_s(self, key: str, what: str) -> float:
        """Return the median of a few runs as soon as two medians in a row agree; the last after `MEDIANS`."""
        before_s = self.median_s(key, what, 1)
        for _ in range(MEDIANS):
            after_s = self.median_s(key, what, 1)
            if abs(after_s / before_s - 1) < AGREE:
                break
            before_s = after_s
        return after_s

    def shape(self, subject: Subject) -> None:
        """Shape the links, once, so that communication takes its multiple of the computation alone."""
        network = self._network
        if network is None or self.rate_B_per_s is not None:
            return
        self.enter("scale", subject.changed(algorithm="symmetric", experts_by="grouped"))
        try:
            computed_s = self.settled_s("scale", "compute")
            self.sent_B = max(self.call("sent_B", key="scale"))
        finally:
            self.leave("scale")
        self.port_B_per_s = self.sent_B / (self.workload.communication_to_computation * computed_s)
        links_per_port = self.workload.ranks - 1 if self.workload.topology == "full_mesh" else 1
        self.rate_B_per_s = self.port_B_per_s / links_per_port
        links = shaped_links(network.topology)
        for link in links:
            network.set_rate(link, self.rate_B_per_s)
        for link in links[:2]:
            network.verify(link, self.rate_B_per_s)
        at_once_B = links_per_port * burst_B(self.rate_B_per_s, network.topology.frame_B)
        self.at_once_s = at_once_B / self.port_B_per_s
        self.least_s = max(self.sent_B / self.port_B_per_s - self.at_once_s, 0.0)

    def link_B(self, key: str, chunks: int) -> float:
        """Return the bytes of one run over the busiest direction of a link, by the kernel's counters."""
        network = self._network
        assert network is not None
        before = network.sent()
        self.slowest_s(key, "communicate", chunks, RUNS)
        after = network.sent()
        links = shaped_links(network.topology)
        return max((after[link][end] - before[link][end]) / RUNS for link in links for end in (0, 1))

    def retransmitted(self) -> int:
        """Return the TCP segments sent again so far by all hosts."""
        return sum(self._network.retransmitted()) if self._network is not None else 0

    def enter(self, key: str, subject: Subject) -> None:
        """Create a variant's operation on every rank, which lasts until it leaves."""
        self.variants.add(key)
        self.call("make", key=key, subject=subject.described)

    def leave(self, key: str) -> None:
        """Drop a variant's operation."""
        if key in self.variants:
            self.variants.remove(key)
            if len(self.pool):
                self.call("drop", key=key)


def topology_of(workload: Workload) -> Topology:
    """Return the network of a workload, unshaped.

    Frames are large, because small ones cost the cores more, which links of GPUs do not. Two ranks share a
    link. More have a link each to a switch; or each a router of its own, which stands for its ports, and a
    link from router to router for each pair.
    """
    hosts = tuple(f"node{rank}" for rank in range(workload.ranks))
    if workload.ranks == 2:
        topology = Topology(hosts, (), (Link(hosts[0], hosts[1]),), LARGEST_FRAME_B)
    elif workload.topology == "switch":
        links = tuple(Link(host, "switch") for host in hosts)
        topology = Topology(hosts, ("switch",), links, LARGEST_FRAME_B)
    else:
        routers = tuple(f"router{rank}" for rank in range(workload.ranks))
        own = tuple(Link(host, router) for host, router in zip(hosts, routers, strict=True))
        pairs = tuple(Link(*pair) for pair in combinations(routers, 2))
        topology = Topology(hosts, routers, (*own, *pairs), LARGEST_FRAME_B)
    return topology


def shaped_links(topology: Topology) -> list[int]:
    """Return the links that have the workload's rate: all but those from a host to its own router."""
    return [
        number
        for number, link in enumerate(topology.links)
        if not link.other.startswith("router") or "node" not in link.one
    ]
