"""The fabric suite: how routing and the number of queue pairs change a collective, with real packets.

The baseline is one connection per pair of ranks, its spine chosen by a hash of addresses. Packets travel
between namespaces on this machine, a leaf-spine fabric with a rank on each host, which all variants of a
workload share. A round is a random placement, and is also simulated by flows on the routes that the packets
took (`harness.instruments.network`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import psutil

from harness.instruments.distributed.rank_pool import RankPool, locations_in
from harness.instruments.network import clos as placements
from harness.instruments.network import routing
from harness.instruments.network.clos import IN_RACK, Clos, FloatArray, IntArray
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.flow_simulator import CollectiveResult, simulate_routed
from harness.instruments.network.routing import Flows, Routed, RoutingPolicy, flows_of
from harness.instruments.network.topology import FRAME_B, Flow, Link, RouteRule, Topology
from harness.records import Json, Note, Origin, Reading, Unavailable, WrongResult
from suites.fabric import on_rank
from suites.fabric.on_rank import NUMBER_B, messages
from suites.fabric.workload import Workload

TIMEOUT_S = 120.0

LEAST_BUFFER_B, BUFFER_S = 16 << 10, 0.0025
"""A connection's least receive buffer, and the time that a faster link's buffer covers. Small, so that a
NIC's neighbours share it evenly and 32 connections to each fit into the queues."""

STEAL_LAST = 8
"""Fields of psutil.cpu_times() that add up: user to steal; a guest's time is already in user and nice."""

ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class CollectiveRun(NamedTuple):
    """One collective: the slowest rank's seconds, the spine of each flow (F,), and the load of uplinks.

    `load_B` are the bytes from racks to spines and back (2, racks, spines), with headers, acknowledgements,
    barriers and notices. Also what may have disturbed it: segments retransmitted, and the share of this
    machine's processor time that its hypervisor took (steal).
    """

    time_s: float
    spines: IntArray
    load_B: FloatArray
    retransmitted: int
    stolen: float


def topology(clos: Clos) -> Topology:
    """Return the topology, hosts' links first, in order, then each rack's uplinks, by spine."""
    hosts = tuple(f"h{number}" for number in range(clos.racks * clos.nics_per_rack))
    leaves = tuple(f"leaf{number}" for number in range(clos.racks))
    spines = tuple(f"spine{number}" for number in range(clos.spines))
    down = [
        Link(host, leaves[number // clos.nics_per_rack], clos.nic_B_per_s)
        for number, host in enumerate(hosts)
    ]
    up = [Link(leaf, spine, clos.uplink_B_per_s) for leaf in leaves for spine in spines]
    return Topology(hosts, leaves + spines, (*down, *up))


def stolen_since(before: Any) -> float:
    """Return the stolen share of processor time since those psutil.cpu_times() (steal, proc_stat(5)).

    The kernel counts in ticks of 10 ms; less than one tick is reported as nothing.
    """
    now = psutil.cpu_times()
    whole_s = sum(now[:STEAL_LAST]) - sum(before[:STEAL_LAST])
    return float((now.steal - before.steal) / whole_s) if whole_s else 0.0


class EmulatedFabric:
    """The network and its ranks, which follow one placement at a time."""

    def __init__(self, workload: Workload, clos: Clos) -> None:
        self.clos, self.max_queue_pairs, self.variants = clos, 1, 0
        self._connected: tuple[list[int], int] | None = None
        self._connections: list[Any] = []
        self._routed: tuple[RoutingPolicy, list[RouteRule]] | None = None
        with ExitStack() as stack:
            buffer_B = max(LEAST_BUFFER_B, round(BUFFER_S * clos.nic_B_per_s))
            self.network = stack.enter_context(Network(topology(clos), buffer_B))
            places = locations_in(self.network, ALONE)[: workload.ranks]
            address = self.network.address(self.network.topology.hosts[0])
            # Of the slowest uplink; raises `Unavailable` where any link is off by over 5 %.
            links = enumerate(self.network.topology.links)
            rates = [self.network.verify(number, link.rate_B_per_s) for number, link in links]
            self.carried_B_per_s = min(rates[len(self.network.topology.hosts) :])
            self.pool = stack.enter_context(RankPool(places, address, timeout_s=TIMEOUT_S))
            stack.pop_all()

    def close(self) -> None:
        """End the ranks and remove the network."""
        self.pool.close()
        self.network.close()

    def run_collective(
        self, workload: Workload, policy: RoutingPolicy, flows: Flows, order: Sequence[int]
    ) -> CollectiveRun:
        """Run one collective with the ranks in that order, by the variant's policy; `flows` are its flows."""
        self._connect(list(order))
        self._configure_routing(policy, flows)
        before_B, before = self._uplinks_B(), sum(self.network.retransmitted())
        processors = psutil.cpu_times()
        times_s = self.pool.call(
            f"{on_rank.__name__}:collective",
            kind=workload.collective,
            buffer_B=workload.buffer_B,
            pairs=policy.queue_pairs,
            split=policy.split,
            in_flight=routing.IN_FLIGHT,
        )
        load_B = (self._uplinks_B() - before_B).T.reshape(2, self.clos.racks, self.clos.spines)
        retransmitted, stolen = sum(self.network.retransmitted()) - before, stolen_since(processors)
        return CollectiveRun(max(times_s), self.spines_of(flows), load_B, retransmitted, stolen)

    def spines_of(self, flows: Flows) -> IntArray:
        """Return the spine of each flow, as the kernel of its rack's switch reports it."""
        clos, spine_F = self.clos, np.full(len(flows.source), IN_RACK)
        hosts, queried, which = self.network.topology.hosts, [], []
        for number, (source, other, pair) in enumerate(
            zip(flows.source, flows.destination, flows.queue_pair, strict=True)
        ):
            if source // clos.nics_per_rack == other // clos.nics_per_rack:
                continue
            own, port = self._ports(int(pair), int(source), int(other))
            leaf = f"leaf{source // clos.nics_per_rack}"
            queried.append(Flow(leaf, int(source), hosts[source], own, hosts[other], port))
            which.append(number)
        links = np.array(self.network.egress_links(queried), dtype=np.int64)
        spine_F[which] = (links - len(hosts)) % clos.spines
        return spine_F

    def _ports(self, pair: int, source: int, destination: int) -> tuple[int, int]:
        address = self.network.address(self.network.topology.hosts[destination])
        for own, other, port in self._connections[source][pair]:
            if other == address:
                return own, port
        raise Unavailable(f"gloo has no connection from host {source} to {address} in group {pair}")

    def _connect(self, order: list[int]) -> None:
        """Order the ranks, in groups with their own connections, unless they are in that order already."""
        if self._connected != (order, self.max_queue_pairs):
            self._connected = None
            self._connections = self.pool.call(
                f"{on_rank.__name__}:connect", order=order, count=self.max_queue_pairs, timeout_s=TIMEOUT_S
            )
            self._connected = (order, self.max_queue_pairs)

    def _configure_routing(self, policy: RoutingPolicy, flows: Flows) -> None:
        """Configure the switches to route by the policy, unless they do already."""
        rules = self._route_rules(policy, flows)
        if self._routed != (policy, rules):
            self._routed = None
            self.network.hash_ports(policy.hash_ports)
            self.network.set_rules(rules)
            self._routed = (policy, rules)

    def _route_rules(self, policy: RoutingPolicy, flows: Flows) -> list[RouteRule]:
        if policy.method == "hash":
            return []
        hosts, clos = self.network.topology.hosts, self.clos
        spines = routing.choose_spines(flows, clos, policy)
        rules = set()
        for source, other, spine in zip(flows.source, flows.destination, spines, strict=True):
            rack = source // clos.nics_per_rack
            if spine != IN_RACK:
                link = len(hosts) + int(rack) * clos.spines + int(spine)
                named = hosts[source] if policy.method == "central" else None
                rules.add(RouteRule(f"leaf{rack}", hosts[other], link, named))
        return sorted(rules, key=str)

    def _uplinks_B(self) -> FloatArray:
        """Return the bytes sent so far on each uplink by rack and by spine (racks x spines, 2)."""
        return np.array(self.network.sent()[len(self.network.topology.hosts) :], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Subject(Routed):
    """A workload under one variant's routing."""

    workload: Workload
    seed: int


TCP_DATA_B = FRAME_B - 14 - 20 - 32
"""Payload share of a full frame: without the headers of Ethernet, IP, and TCP with timestamps (RFC 7323)."""

PAYLOAD_SHARE = TCP_DATA_B / FRAME_B
"""Share of a link's rate that carries payload. Acknowledgments, which share the links, are not deducted."""


@dataclass(slots=True)
class Session:
    """One variant on the network that all variants of its workload share, and the placement that is next."""

    subject: Subject
    fabric: EmulatedFabric
    placement: int = 0


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for an impossible fabric or a job that it has no room for."""
    subject = Subject(Workload(**workload), seed)
    try:
        clos = subject.workload.clos()
        flows_of(subject.workload.collective, nics_of(subject, 0), subject.workload.buffer_B)
    except ValueError as error:
        raise Unavailable(str(error)) from None
    if subject.workload.ranks != clos.nics:
        raise Unavailable(f"ranks={subject.workload.ranks}: expected {clos.nics}, one for each host")
    return subject


def nics_of(subject: Subject, placement: int) -> IntArray:
    """Return the NICs of the ranks at one placement (hosts, 1); raises ValueError where they do not fit."""
    workload, seed = subject.workload, placements.round_seed(subject.seed, placement)
    return placements.place(workload.clos(), workload.placement, workload.ranks, 1, seed)


def prepare(subject: Subject) -> Session:
    """Start the network and its ranks, unless another variant of the workload did."""
    validate_even_split(subject)
    fabric = shared_fabric(subject.workload)
    fabric.variants += 1
    fabric.max_queue_pairs = max(fabric.max_queue_pairs, subject.policy.queue_pairs)
    return Session(subject, fabric)


def validate_even_split(subject: Subject) -> None:
    """Raise `Unavailable` for a buffer that does not split evenly over ranks, messages and queue pairs."""
    workload, policy = subject.workload, subject.policy
    parts = messages(policy.queue_pairs, policy.split) * (policy.queue_pairs if policy.split else 1)
    if workload.buffer_B % (NUMBER_B * workload.ranks * parts) or parts % policy.queue_pairs:
        raise Unavailable(
            f"buffer_B={workload.buffer_B} does not split into numbers of {NUMBER_B} B for {workload.ranks} "
            f"ranks, in {parts} parts each over {policy.queue_pairs} queue pairs"
        )


def check(session: Session) -> None:
    """Compare every rank's result with a closed formula, and the bytes of uplinks with their flows'.

    Raises `WrongResult`. Each later collective compares results too.
    """
    _, emulated, simulated = run_collective(session)
    validate_routes(emulated.load_B, simulated.load_B)


def validate_routes(counted_B: FloatArray, routed_B: FloatArray) -> None:
    """Raise `WrongResult` where an uplink carried less than the kernel routes over it.

    Both are by direction, rack and spine. Counted bytes also have headers and acknowledgements.
    """
    wrong = np.argwhere(counted_B < routed_B)
    if wrong.size:
        direction, rack, spine = wrong[0]
        raise WrongResult(
            f"the uplink {('to', 'from')[direction]} spine{spine} of leaf{rack} carried "
            f"{counted_B[direction, rack, spine]:.0f} B of the {routed_B[direction, rack, spine]:.0f} B that "
            "are routed over it"
        )


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload = session.subject.workload
    own = {"fabric": "emulated", "nodes": str(workload.ranks), "failed_uplinks": "0"}
    return workload.conditions(session.subject.policy) | own


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Yield what is the same for all placements."""
    yield Reading("queue_pairs", "1", session.subject.policy.queue_pairs, Origin.CALCULATED)
    yield Reading("link_rate", "B/s", session.subject.workload.uplink_B_per_s, Origin.CALCULATED, "asked")
    yield Reading("link_rate", "B/s", session.fabric.carried_B_per_s, Origin.MEASURED, "carried")


def sample(session: Session) -> Iterator[Reading]:
    """Run the next placement's collective on the network, and simulate it on the same routes."""
    run, emulated, simulated = run_collective(session)
    session.placement += 1
    yield from emulated.readings(Origin.EMULATED)
    yield Reading("segments_sent_again", "1", run.retransmitted, Origin.EMULATED)
    yield Reading("processors_stolen", "1", run.stolen, Origin.MEASURED)
    yield from simulated.readings(Origin.SIMULATED, "flows")
    yield Reading("model_error", "1", simulated.time_s / emulated.time_s - 1, Origin.SIMULATED, "flows")


def run_collective(session: Session) -> tuple[CollectiveRun, CollectiveResult, CollectiveResult]:
    """Return the run with packets, its result, and the simulated result on the same routes."""
    workload, policy = session.subject.workload, session.subject.policy
    nic_HG = nics_of(session.subject, session.placement)
    flows = flows_of(workload.collective, nic_HG, workload.buffer_B, policy.queue_pairs)
    run = session.fabric.run_collective(workload, policy, flows, [int(nic) for nic in nic_HG[:, 0]])
    simulated = simulate_routed(
        workload.clos(PAYLOAD_SHARE),
        workload.collective,
        workload.ranks,
        workload.buffer_B,
        flows,
        run.spines,
        policy.turns(workload.collective),
    )
    bus_B_per_s = simulated.bus_B_per_s * simulated.time_s / run.time_s
    emulated = simulated._replace(time_s=run.time_s, bus_B_per_s=bus_B_per_s, load_B=run.load_B)
    return run, emulated, simulated


@lru_cache(maxsize=1)
def shared_fabric(workload: Workload) -> EmulatedFabric:
    """Return the network and the ranks that all variants of a workload share; only one exists at a time."""
    return EmulatedFabric(workload, workload.clos())


def close(session: Session) -> None:
    """End network and ranks with the last variant that shares them."""
    session.fabric.variants -= 1
    if not session.fabric.variants:
        session.fabric.close()
        shared_fabric.cache_clear()
