"""Two nodes made on this machine: a network of namespaces, ranks on it, and what both can do.

A step's time on a link is predicted from a trace of its computation, and from its collectives at a few rates
without computation; never from steps on a shaped link.

Scale the paper's links to this host, so that the ratio of communication to computation is the paper's.

A node here computes less and sends less than one of eight H100. A link is slowed down by both factors
together: rate x (bytes here / bytes there) x (seconds of computation there / seconds of computation here).
Each strategy's links are scaled by its own bytes and computation here. "There" is always the quoted run of
FSDP2, so every strategy has that run's ratio; an ideal link without overlap would gain each the same.
"""

from __future__ import annotations

import json
import math
import statistics
from contextlib import ExitStack
from typing import NamedTuple

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import two_nodes
from suites.interconnect.replay import (
    Collective,
    Service,
    TraceEvents,
    alone_s,
    collectives,
    computed_s,
    merged,
    service,
    step_seconds,
)
from suites.interconnect.training_cluster import TrainingCluster, strategy_step
from suites.interconnect.workload import Workload
from suites.training.step import TrainingStep
from suites.training.step_time.published import ELEMENT_B, FAST_B_PER_S, FAST_STEP_S, NODES, PARAMETERS


class StepCost(NamedTuple):
    """Bytes per step on a node's link, in each direction, and seconds per step without the link."""

    link_B: float
    compute_s: float


COLLECTIVES = 3  # two all-gathers, one reduce-scatter


def paper_run() -> StepCost:
    """Return the cost of a step of Table III's run.

    Each node needs the other's half of the parameters three times. That is the least that any algorithm moves
    between two nodes. The computation is what remains of the fast link's 4.4 s.
    """
    link_B = COLLECTIVES * PARAMETERS * ELEMENT_B * (NODES - 1) / NODES
    return StepCost(link_B, FAST_STEP_S - link_B / FAST_B_PER_S)


def scaled(rate_B_per_s: float, here: StepCost, there: StepCost) -> float:
    """Return the rate that relates to `here` as `rate_B_per_s` relates to `there`."""
    return rate_B_per_s * (here.link_B / there.link_B) * (there.compute_s / here.compute_s)


WARM_UP, UPDATES = 2, 11
"""Updates that are left out, and that are looked at, where a median of a few will do."""

CALIBRATION_B_PER_S = (1.25e9, 5e9, 2e10, 8e10, 3.2e11)
"""Links of the paper's run, at whose scaled rates collectives are timed without computation."""

REPEATS = 4
"""Times that an update's collectives are timed without computation, at each rate."""


ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""A rank computes on the CPU, with one thread; torch.distributed has others to move bytes with."""


class EmulatedCluster(TrainingCluster):
    """Two nodes on a switch with `ranks_per_node` ranks each; `run` is the cost of one step of the workload's
    strategy on them, by which the paper's links are scaled.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self._rate_B_per_s: float | None = None
        self._verified: dict[float, float] = {}
        self._tracers: set[str] = set()
        self._services: dict[str, dict[Collective, Service]] = {}  # by tracer
        with ExitStack() as stack:
            self.network = stack.enter_context(Network(two_nodes(None)))
            super().__init__(stack.enter_context(started(self.network, workload.ranks_per_node)))
            self.run = self._measure(workload, seed)
            stack.pop_all()

    def close(self) -> None:
        """End the ranks and remove the network."""
        super().close()
        self.network.close()

    def enter(self, key: str, step: TrainingStep) -> None:
        """Create a variant's trainers, which last until it leaves."""
        self.shape(None)
        super().enter(key, step)

    def rate(self, link_B_per_s: float) -> float:
        """Return the rate here, in B/s, of a link of the paper's run, scaled by the strategy's own bytes."""
        return scaled(link_B_per_s, self.run, paper_run())

    def shape(self, rate_B_per_s: float | None) -> None:
        """Limit both nodes' links to this rate from now on; None removes the limit."""
        if rate_B_per_s != self._rate_B_per_s:
            self._rate_B_per_s = math.nan  # of no rate, until both links have it
            for link in range(len(self.network.topology.links)):
                self.network.set_rate(link, rate_B_per_s)
            self._rate_B_per_s = rate_B_per_s

    def verified(self, rate_B_per_s: float) -> float:
        """Return what the links carry when shaped so; raises `Unavailable` where it is off by over 5 %."""
        if rate_B_per_s not in self._verified:
            self.shape(rate_B_per_s)
            links = range(len(self.network.topology.links))
            self._verified[rate_B_per_s] = min(self.network.verify(link, rate_B_per_s) for link in links)
        return self._verified[rate_B_per_s]

    def link_B(self, key: str, count: int) -> float:
        """Return the bytes that node 0 sends per update, by its interface's counter, with frame headers."""
        before = self.network.sent()[0][0]
        self.call("updates", key=key, count=count)
        return (self.network.sent()[0][0] - before) / count

    def trace(self, step: TrainingStep) -> TraceEvents:
        """Return one update's trace on unshaped links: its collectives and the computation between them."""
        key = trace_key(step)
        if key not in self._tracers:
            self.call("make", key=key, step=step.described)
            self.call("watch", key=key)
            self.shape(None)
            self.call("updates", key=key, count=WARM_UP)
            self._tracers.add(key)
        self.shape(None)
        return merged([[events] for events in self.call("trace", key=key)])

    def calibrate(self, step: TrainingStep) -> None:
        """Time the step's collectives without computation, at a few rates.

        Raises ValueError for a collective that is not timed by itself.
        """
        taken_s: dict[float, dict[Collective, list[float]]] = {}
        for _ in range(REPEATS):
            events = self.trace(step)
            kinds = collectives(events)
            for rate in map(self.rate, CALIBRATION_B_PER_S):
                self.shape(rate)
                alone = alone_s(events, self.call("collectives", key=trace_key(step)))
                for one, all_s in alone.items():
                    taken_s.setdefault(rate, {}).setdefault(one, []).extend(all_s)
        self._services[trace_key(step)] = {
            one: service({rate: alone[one] for rate, alone in taken_s.items()}) for one in kinds
        }

    def predicted_s(self, events: TraceEvents, step: TrainingStep, rate_B_per_s: float) -> float:
        """Return the update's time at that rate: its trace, replayed with each collective's calibrated time.

        Raises ValueError for a collective that was not in the step's calibration.
        """
        services = self._services[trace_key(step)]
        if unknown := set(collectives(events)) - set(services):
            raise ValueError(f"{len(unknown)} of its collectives were not in its calibration")
        return step_seconds(events, lambda one: services[one].seconds(rate_B_per_s))

    def is_calibrated(self, step: TrainingStep) -> bool:
        """Return whether the step's collectives are timed."""
        return trace_key(step) in self._services

    def _measure(self, workload: Workload, seed: int) -> StepCost:
        step = strategy_step(workload, seed)
        with self.trainer("scale", step):
            self.call("updates", key="scale", count=WARM_UP)
            link_B = self.link_B("scale", UPDATES)
        computed = [computed_s(self.trace(step)) for _ in range(UPDATES)]
        return StepCost(link_B, statistics.median(computed))


def started(network: Network, ranks_per_node: int) -> RankPool:
    """Start ranks on every node of the network."""
    hosts = network.topology.hosts
    places = [
        RankLocation(network.command(host, []), {"GLOO_SOCKET_IFNAME": network.interface(host)} | ALONE)
        for host in hosts
        for _ in range(ranks_per_node)
    ]
    return RankPool(places, network.address(hosts[0]))


def trace_key(step: TrainingStep) -> str:
    """Return the name of the trainer whose updates are traced: one per combination of techniques."""
    return f"trace of {json.dumps(step.described['techniques'])}"
