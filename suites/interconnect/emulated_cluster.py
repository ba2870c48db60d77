"""Two nodes made on this machine: a network of namespaces, ranks on it, and what both can do.

A step's time on a link is predicted by replaying a trace of its computation with collectives that are timed
at a few rates without computation; never from steps on a shaped link. One link carries one collective after
the other, in the order in which they start; computation continues until it waits for one.

The paper's links are scaled to this host, so that the ratio of communication to computation is the paper's:
rate x (bytes here / bytes there) x (seconds of computation there / seconds of computation here). "Here" is
each strategy's own step, "there" the quoted run of FSDP2, so every strategy has that run's ratio.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from harness.instruments.distributed.rank_pool import RankPool, locations_in
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import two_nodes
from suites.interconnect.training_cluster import TrainingCluster, strategy_step
from suites.interconnect.workload import Workload
from suites.training.step import TrainingStep
from suites.training.step_time.published import ELEMENT_B, FAST_B_PER_S, FAST_STEP_S, NODES, PARAMETERS

TraceEvents = Sequence[Sequence[Any]]

KINDS = ("all_reduce", "all_gather", "reduce_scatter")


class Collective(NamedTuple):
    """One kind of collective at one size."""

    name: str
    elements: int
    dtype: str


class Service(NamedTuple):
    """The seconds of a collective by itself, at a few link rates."""

    rates_B_per_s: tuple[float, ...]  # increasing
    taken_s: tuple[float, ...]

    def seconds(self, rate_B_per_s: float) -> float:
        """Return the seconds at any rate: between two measured ones a line over logarithms.

        Below them bytes dominate, so the slowest time grows as the rate falls. Above them latency counts.
        """
        slower = max(self.rates_B_per_s[0] / rate_B_per_s, 1.0)
        rates, taken_s = np.log(self.rates_B_per_s), np.log(self.taken_s)
        return slower * float(np.exp(np.interp(np.log(rate_B_per_s), rates, taken_s)))


def collectives(events: TraceEvents) -> list[Collective]:
    """Return the collectives of a trace, each kind once; raises ValueError for one outside of `KINDS`."""
    kinds = list(dict.fromkeys(Collective(*event[2:]) for event in events if event[0] == "begin"))
    for one in kinds:
        if one.name not in KINDS:
            raise ValueError(f"a collective of {one.elements} elements cannot be timed by itself")
    return kinds


def alone_s(events: TraceEvents, times: Sequence[Sequence[Sequence[float]]]) -> dict[Collective, list[float]]:
    """Return the seconds of each kind of collective where ranks slept instead of computing.

    `times[rank][number]` is its start and end, by one clock. It lasts from when all ranks have started it,
    and the one that ended before it has ended, until it has ended on all.
    """
    taken_s: dict[Collective, list[float]] = {one: [] for one in collectives(events)}
    last = [
        (max(over_s for _, over_s in ranks), max(begun_s for begun_s, _ in ranks))
        for ranks in zip(*times, strict=True)
    ]
    started = [Collective(*event[2:]) for event in events if event[0] == "begin"]
    free_s = 0.0
    for (over_s, begun_s), one in sorted(zip(last, started, strict=True)):
        taken_s[one].append(over_s - min(max(begun_s, free_s), over_s))
        free_s = over_s
    return taken_s


def computed_s(events: TraceEvents) -> float:
    """Return the seconds that the update computes, without a network."""
    return float(sum(event[1] for event in events if event[0] == "compute"))


def merged(ranks: Sequence[Sequence[TraceEvents]]) -> TraceEvents:
    """Merge the traces of several updates and ranks: the slowest rank's median of each stretch.

    Raises ValueError where ranks or updates differ in more than their computing times.
    """
    shape = [_shape(event) for event in ranks[0][0]]
    if any([_shape(event) for event in trace] != shape for rank in ranks for trace in rank):
        raise ValueError("updates differ in their collectives or in their order")
    events = []
    for place, event in enumerate(ranks[0][0]):
        if event[0] == "compute":
            slowest_s = max(statistics.median(trace[place][1] for trace in rank) for rank in ranks)
            event = ["compute", slowest_s]
        events.append(event)
    return events


def step_seconds(events: TraceEvents, service_s: Callable[[Collective], float]) -> float:
    """Return the update's seconds where each collective takes `service_s` by itself."""
    now_s = free_s = 0.0
    over_s: dict[int, float] = {}
    for event in events:
        if event[0] == "compute":
            now_s += event[1]
        elif event[0] == "begin":
            free_s = max(now_s, free_s) + service_s(Collective(*event[2:]))
            over_s[event[1]] = free_s
        else:
            now_s = max(now_s, over_s[event[1]])
    return max([now_s, *over_s.values()])


def service(samples: Mapping[float, Sequence[float]]) -> Service:
    """Return the service from seconds, several at each rate (B/s): their mean, never zero.

    Raises ValueError without a rate.
    """
    if not samples:
        raise ValueError("a collective is timed at one rate at least")
    rates = tuple(sorted(samples))
    return Service(rates, tuple(max(statistics.fmean(samples[rate]), LEAST_S) for rate in rates))


LEAST_S = 1e-7
"""Seconds of a collective that ended together with the one before."""


def _shape(event: Sequence[Any]) -> tuple[Any, ...]:
    return (event[0],) if event[0] == "compute" else tuple(event)


class StepCost(NamedTuple):
    """Bytes per step on a node's link, in each direction, and seconds per step without the link."""

    link_B: float
    compute_s: float


COLLECTIVES = 3  # two all-gathers, one reduce-scatter


def paper_run() -> StepCost:
    """Return the cost of a step of Table III's run; its computation is what remains of the fast link's 4.4 s.

    Each node needs the other's half of the parameters three times, the least that any algorithm moves.
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
    """Two nodes on a switch; `run`: the cost of a step of the workload's strategy, which scales links."""

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

    def ready(self) -> None:
        """Let links be as fast as they are while trainers are created."""
        self.shape(None)

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
        """Time the step's collectives without computation, at a few rates; else raises ValueError."""
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
        """Return the time of a trace, replayed with calibrated collectives; else raises ValueError."""
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
    places = [one for one in locations_in(network, ALONE) for _ in range(ranks_per_node)]
    return RankPool(places, network.address(network.topology.hosts[0]))


def trace_key(step: TrainingStep) -> str:
    """Return the name of the trainer whose updates are traced: one per combination of techniques."""
    return f"trace of {json.dumps(step.described['techniques'])}"
