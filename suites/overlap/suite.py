"""The overlap suite (Triton-distributed): computation that runs while its data is communicated.

The baseline is PyTorch with gloo: the collective, then the computation. All variants of a workload share
ranks, over emulated links or in shared memory; the links' rate makes communication take a chosen multiple of
the computation.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

from harness.instruments.distributed.rank_pool import RankLocation, RankPool, locations_in
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import LARGEST_FRAME_B, Link, Topology, burst_B
from harness.records import Json, Note, Origin, Reading, Unavailable, WrongResult
from suites.overlap import on_rank
from suites.overlap.workload import Subject, Workload

ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
CALIBRATIONS = 7  # runs of which the median is taken, where a median of a few will do
ENOUGH_S = 0.5  # how long these take together, where one does not take longer

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
                places = locations_in(network, ALONE)
                addresses = [network.address(host) for host in network.topology.hosts]
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
        self.enter("scale", replace(subject, algorithm="symmetric", experts_by="grouped"))
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
        self.call("make", key=key, subject=asdict(subject))

    def leave(self, key: str) -> None:
        """Drop a variant's operation."""
        if key in self.variants:
            self.variants.remove(key)
            if len(self.pool):
                self.call("drop", key=key)


def topology_of(workload: Workload) -> Topology:
    """Return the network of a workload, unshaped, with frames so large that the cores are no limit.

    In a full mesh of more than two ranks each has a router of its own, which stands for its ports, and a link
    from router to router for each pair.
    """
    hosts = tuple(f"node{rank}" for rank in range(workload.ranks))
    if workload.ranks == 2 or workload.topology == "switch":
        return Topology.star(hosts)
    routers = tuple(f"router{rank}" for rank in range(workload.ranks))
    links = [Link(*pair) for pair in (*zip(hosts, routers, strict=True), *combinations(routers, 2))]
    return Topology(hosts, routers, tuple(links), LARGEST_FRAME_B)


def shaped_links(topology: Topology) -> list[int]:
    """Return the links that have the workload's rate: all but those from a host to its own router."""
    return [
        number
        for number, link in enumerate(topology.links)
        if not link.other.startswith("router") or "node" not in link.one
    ]


KEYS = itertools.count()
CHUNKS = (1, 2, 4, 8, 16)  # numbers of chunks that are tried; the fastest is used

MOST_ROUNDS = 0.6
"""Share of the rounds in which a number of chunks must be faster than one chunk to be used."""

TOLERANCE = 1e-4
"""Largest error of a result in fp32, over its largest value: sums of some thousand products."""

FIRST_CHUNK = max(CHUNKS)
"""Chunks of a rank's part whose first is in the bound, the same for all variants."""

CALLS = 200  # calls of an operation in shared memory in one run, which takes microseconds


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: gloo's collective, then computation; the experts one after another."""
    given = Workload(**workload)
    if given.operation in ("dispatch", "combine"):
        if given.experts % given.ranks:
            raise Unavailable(f"{given.experts} experts do not divide by {given.ranks} ranks")
        return Subject(given, seed, experts_by="grouped")
    if not given.is_linked and given.ranks > len(os.sched_getaffinity(0)):
        raise Unavailable(f"{given.ranks} ranks that poll shared memory need a core each")
    if given.operation == "training_step" and given.ranks % given.tp_size:
        raise Unavailable(f"{given.ranks} ranks do not divide by {given.tp_size} of tensor parallelism")
    return Subject(given, seed)


@dataclass(slots=True)
class Session:
    """A variant's operation on the ranks that all variants of its workload share; `key` names it there."""

    subject: Subject
    cluster: OverlapCluster
    key: str
    chunks: int = 1


def prepare(subject: Subject) -> Session:
    """Start ranks and links if no variant has, and the variant's operation on them; choose its chunks."""
    cluster = shared_cluster(subject.workload, subject.seed)
    session = Session(subject, cluster, f"variant{next(KEYS)}")
    try:
        cluster.enter(session.key, subject)
        cluster.shape(subject)
        if subject.algorithm != "in_sequence":
            possible = [one for one in CHUNKS if subject.workload.m // subject.workload.ranks >= one]
            session.chunks = fastest_chunks(cluster.rounds_s(session.key, "run", possible))
    except BaseException:
        close(session)
        raise
    return session


def fastest_chunks(times_s: Mapping[int, Sequence[float]]) -> int:
    """Return the number of chunks with the smallest median time.

    The fewest are used unless the others were faster in most rounds, so that noise does not choose more.
    `times_s`: seconds per number of chunks, one of each round.
    """
    best = min(times_s, key=lambda one: statistics.median(times_s[one]))
    fewest = min(times_s)
    faster = [one < other for one, other in zip(times_s[best], times_s[fewest], strict=True)]
    return best if sum(faster) > MOST_ROUNDS * len(faster) else fewest


def check(session: Session) -> None:
    """Compare the result with float64 on every rank; raises `WrongResult`."""
    errors = session.cluster.call("error", key=session.key, chunks=session.chunks)
    for rank, error in enumerate(errors):
        if not error <= TOLERANCE:
            raise WrongResult(
                f"rank {rank} is off by {error:.2g} of the largest value, allowed are {TOLERANCE:g}"
            )


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload = session.subject.workload
    return {
        "device": "cpu",
        "backend": backend(session.subject),
        "network": "emulated" if workload.is_linked else "shared memory",
        "operation": workload.operation,
        "ranks": str(workload.ranks),
        "precision": "fp32",
        "chunks": str(session.chunks),
    }


def backend(subject: Subject) -> str:
    """Return what moves the data."""
    if subject.gather == "low_latency":
        return "words with flags in shared memory"
    return "one-sided puts over TCP" if subject.algorithm == "symmetric" else "gloo"


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Read the link's rate, the bytes on it, and how long communication takes alone."""
    cluster, linked = session.cluster, session.subject.workload.is_linked
    yield Reading("chunks", "1", session.chunks, Origin.CALCULATED)
    alone_s = cluster.median_s(session.key, "communicate", session.chunks, 1 if linked else CALLS)
    yield Reading("communication_alone", "s", alone_s, Origin.EMULATED if linked else Origin.MEASURED)
    if linked:
        yield Reading("link_rate", "B/s", cluster.port_B_per_s, Origin.EMULATED)
        yield Reading("link_bytes", "B", cluster.link_B(session.key, session.chunks), Origin.MEASURED)
        yield Reading("line_rate_share", "1", cluster.least_s / alone_s, Origin.EMULATED)
        before = cluster.retransmitted()
        busy_s = max(cluster.call("cpu_s", key=session.key, chunks=session.chunks))
        yield Reading("communication_cpu", "s", busy_s, Origin.MEASURED)
        yield Reading("retransmitted", "1", cluster.retransmitted() - before, Origin.MEASURED)
    if session.subject.workload.operation == "ag_gemm":
        yield from recorded(session)
    if session.subject.workload.operation == "training_step":
        workload = session.subject.workload
        yield Reading("tokens_per_step", "1", workload.m, Origin.CALCULATED)
        yield Reading("parameters", "1", workload.parameters, Origin.CALCULATED)


def recorded(session: Session) -> Iterator[Reading]:
    """Record one run: when each rank computed, and when data arrived, from the run's start."""
    ranks = session.cluster.call("spans", key=session.key, chunks=session.chunks)
    start_s = min(lanes["run"][0][0] for lanes in ranks)
    for rank, lanes in enumerate(ranks):
        for lane, spans in lanes.items():
            for begin_s, end_s in spans if lane != "run" else ():
                method = f"rank {rank}, {lane}"
                yield Reading("span_begin", "s", begin_s - start_s, Origin.EMULATED, method)
                yield Reading("span_end", "s", end_s - start_s, Origin.EMULATED, method)


def timed(session: Session) -> bool:
    """Return whether runs are timed: not training steps of ranks that share a processor's core."""
    workload = session.subject.workload
    return workload.operation != "training_step" or workload.ranks <= len(os.sched_getaffinity(0))


def sample(session: Session) -> Iterator[Reading | Note]:
    """Read the time of one run, of its computation alone, and the bound that both links and cores set."""
    cluster, key, chunks = session.cluster, session.key, session.chunks
    if not session.subject.workload.is_linked:
        (taken_s,) = cluster.slowest_s(key, "run", chunks, 1, CALLS)
        yield Reading("time", "s", taken_s, Origin.MEASURED)
        return
    (computed_s,) = cluster.slowest_s(key, "compute", chunks)
    (taken_s,) = cluster.slowest_s(key, "run", chunks)
    yield Reading("time", "s", taken_s, Origin.EMULATED)
    if session.subject.workload.operation == "training_step":
        yield Reading("throughput", "token/s", session.subject.workload.m / taken_s, Origin.EMULATED)
    yield Reading("computation_alone", "s", computed_s, Origin.MEASURED)
    ranks, sent_s = session.subject.workload.ranks, cluster.least_s
    yield Reading("communication_to_computation", "1", sent_s / computed_s, Origin.CALCULATED)
    bound_s = overlapped_s(computed_s, sent_s, ranks, FIRST_CHUNK)
    yield Reading("bound", "s", bound_s, Origin.CALCULATED)
    yield Reading("bound_share", "1", bound_s / taken_s, Origin.EMULATED)
    is_step = session.subject.workload.operation == "training_step"
    of_ranks = cluster.call("collectives", key=key) if is_step else [[(cluster.sent_B, computed_s)]]

    def slowest_s(model: Callable[[float, float], float]) -> float:
        return max(pairwise_s(computed_s, collectives, cluster, model) for collectives in of_ranks)

    if is_step:
        pairs_s = slowest_s(lambda products_s, sent_s: overlapped_s(products_s, sent_s, ranks, FIRST_CHUNK))
        yield Reading("pairwise_bound_share", "1", pairs_s / taken_s, Origin.EMULATED)
    algorithm = session.subject.algorithm
    predicted_s = slowest_s(
        lambda products_s, sent_s: predicted_time_s(algorithm, products_s, sent_s, ranks, chunks)
    )
    yield Reading("model_error", "1", predicted_s / taken_s - 1, Origin.CALCULATED)


def overlapped_s(computed_s: float, sent_s: float, ranks: int, chunks: int) -> float:
    """Return max(computation, communication) and the first chunk of the shorter of the two."""
    if computed_s < sent_s:
        return sent_s + computed_s / (ranks * chunks)
    return computed_s + sent_s / ((ranks - 1) * chunks)


def pairwise_s(
    computed_s: float,
    collectives: Iterable[tuple[float, float]],
    cluster: OverlapCluster,
    model: Callable[[float, float], float],
) -> float:
    """Return the time of a step in which a collective can overlap with its own products alone.

    `collectives`: bytes that a rank must send, and seconds of the products, which `computed_s` contains.
    `model` returns the seconds of one collective with its products, from those of both.
    """
    waited_s = 0.0
    for sent_B, products_s in collectives:
        sent_s = max(sent_B / cluster.port_B_per_s - cluster.at_once_s, 0.0)
        waited_s += model(products_s, sent_s) - products_s
    return computed_s + waited_s


def predicted_time_s(algorithm: str, computed_s: float, sent_s: float, ranks: int, chunks: int) -> float:
    """Return what the algorithm takes if neither computation nor communication slows the other down.

    Puts: the first chunk counts only where it takes longer than the rank's own part.
    """
    if algorithm == "in_sequence":
        return computed_s + sent_s
    if algorithm == "decomposed":
        return overlapped_s(computed_s, sent_s, ranks, chunks)
    first_sent_s, first_computed_s = sent_s / ((ranks - 1) * chunks), computed_s / (ranks * chunks)
    own_s = computed_s / ranks
    return max(computed_s, first_sent_s + computed_s - own_s, sent_s + first_computed_s)


@lru_cache(maxsize=1)
def shared_cluster(workload: Workload, seed: int) -> OverlapCluster:
    """Return the ranks and links of all variants of a workload."""
    return OverlapCluster(workload)


def close(session: Session) -> None:
    """Release the variant's operation; with the last of them ranks and links end."""
    session.cluster.leave(session.key)
    if not session.cluster.variants:
        session.cluster.close()
        shared_cluster.cache_clear()
