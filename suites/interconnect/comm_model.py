"""Seconds a training step over several nodes, by closed formulas alone: a band from a best to a worst case.

It holds emulated steps against theory and speaks for scales that no one machine reaches; origin `calculated`.
Two bounds on traffic and two on overlap span the band: best is `node_aware` traffic hidden as far as it can
be, worst is `ring` traffic with nothing hidden. A link is a node's own, full duplex; its rate and bytes are
those of one direction, which the formulas find equal. Links inside a node are taken as free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

Strategy = Literal["fsdp", "ddp", "hybrid"]
"""fsdp: all sharded over all GPUs (ZeRO-3). ddp: nothing is. hybrid: sharded in a node, copied across."""

Traffic = Literal["ring", "node_aware"]
"""How a collective crosses between nodes: `crossing_share`."""

FORWARD_FLOP = 2
"""FLOP a parameter and token, forward: one multiplication, one addition (Kaplan et al., arXiv 2001.08361)."""

BACKWARD_FLOP = 4
"""FLOP a parameter and token, backward: twice the forward pass (the same, section 2.1)."""

MODELS = (1e9, 3e9, 7e9, 12e9, 30e9, 70e9)
"""Parameters of the models swept: 1 B to 70 B."""

NODES = (2, 4, 8, 16, 32, 64)
"""Nodes swept."""

LINKS_GBIT_PER_S = (1, 2.5, 10, 25, 50, 100, 200, 400, 800, 1600, 3200)
"""Rates of a node's link that are sold, in Gbit/s; the last are two, four and eight ports of 400 Gbit/s."""


class Assumption(NamedTuple):
    """Which bound on traffic and which on overlap hold."""

    traffic: Traffic
    overlap: Literal["none", "perfect"]


BEST = Assumption("node_aware", "perfect")
WORST = Assumption("ring", "none")


class Band(NamedTuple):
    """One figure, in one unit, under `BEST` and under `WORST`; `at_best` need not be the lesser."""

    at_best: float
    at_worst: float

    @classmethod
    def same(cls, figure: float) -> Self:
        """A figure that hangs on neither assumption."""
        return cls(figure, figure)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes with a link each. `latency_s`: seconds that one collective between nodes takes with no bytes."""

    nodes: int
    gpus_per_node: int
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1 or self.latency_s < 0:
            raise ValueError(f"a cluster has a node and a GPU at least, and no latency below 0 s: {self}")

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one step sends: `element_B` bytes a parameter, `gradient_B` bytes a gradient (None: as many).

    `units`: the parts that are gathered and reduced apart (FSDP's wrapped layers, DDP's buckets); it counts
    collectives for the latency and leaves the bytes as they are.
    """

    parameters: float
    strategy: Strategy = "fsdp"
    element_B: float = 2.0
    gradient_B: float | None = None
    units: int = 1


def crossing_share(cluster: Cluster, traffic: Traffic) -> float:
    """Share of a collective's bytes that crosses each node's link, a direction: all-gather or reduce-scatter.

    ring: over N GPUs each passes N-1 of N chunks to the next, and in each node just one has its next in
    another node: (N-1)/N (NVIDIA nccl-tests, PERFORMANCE.md). It takes neighbours to share a node where they
    can; a ring laid across nodes at every hop sends `gpus_per_node` times as much, and no bound covers that.
    node_aware: a node must take in what it does not hold, or give its sums of what it does not keep:
    (nodes-1)/nodes. Less can only a switch send that itself reduces or multiplies. One node: nothing crosses.
    """
    if cluster.nodes == 1:
        return 0.0
    parts = cluster.gpus if traffic == "ring" else cluster.nodes
    return (parts - 1) / parts


def link_bytes(exchange: Exchange, cluster: Cluster, traffic: Traffic = "ring") -> float:
    """Bytes that cross each node's link in a step, a direction. s = `crossing_share`, P = parameters.

    fsdp: two all-gathers (forward; backward, resharded between) and one reduce-scatter of the whole,
    s P (2 element_B + gradient_B) (arXiv 1910.02054, section 7.2.2). ddp: an all-reduce, which is a
    reduce-scatter and an all-gather, 2 s P gradient_B (section 7.1). hybrid: a node's GPUs gather and reduce
    among themselves; then each all-reduces its shard, P/gpus_per_node, with its peers, one in every node.
    A ring of those has `nodes` ranks, so 2 (nodes-1)/nodes P/gpus_per_node gradient_B for each of the
    gpus_per_node GPUs: 2 (nodes-1)/nodes P gradient_B a node. Both bounds are one, that of node-aware ddp.
    """
    gradient_B = exchange.element_B if exchange.gradient_B is None else exchange.gradient_B
    if exchange.strategy == "hybrid":
        traffic = "node_aware"
    share = crossing_share(cluster, traffic)
    if exchange.strategy == "fsdp":
        return share * exchange.parameters * (2 * exchange.element_B + gradient_B)
    return share * exchange.parameters * 2 * gradient_B


def latency_seconds(exchange: Exchange, cluster: Cluster) -> float:
    """Seconds of a step's collectives between nodes beside their bytes: 3 a unit for fsdp, else 1."""
    if cluster.nodes == 1:
        return 0.0
    return cluster.latency_s * exchange.units * (3 if exchange.strategy == "fsdp" else 1)


def communication_seconds(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, traffic: Traffic = "ring"
) -> float:
    """Seconds of a step's collectives: bytes over the link's rate in B/s, and latency (Hockney's model)."""
    return link_bytes(exchange, cluster, traffic) / rate_B_per_s + latency_seconds(exchange, cluster)


def step_seconds(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, compute_s: float, assumed: Assumption
) -> float:
    """Seconds a step: computation and communication added, or the longer of the two if overlap is perfect."""
    communication_s = communication_seconds(exchange, cluster, rate_B_per_s, assumed.traffic)
    if assumed.overlap == "perfect":
        return max(compute_s, communication_s)
    return compute_s + communication_s


def step_band(exchange: Exchange, cluster: Cluster, rate_B_per_s: float, compute_s: Band) -> Band:
    """Seconds a step in the best case and in the worst, each with its own seconds of computation."""
    return Band(
        step_seconds(exchange, cluster, rate_B_per_s, compute_s.at_best, BEST),
        step_seconds(exchange, cluster, rate_B_per_s, compute_s.at_worst, WORST),
    )


def compute_left(exchange: Exchange, cluster: Cluster, rate_B_per_s: float, step_s: float) -> Band:
    """Seconds of computation behind a step measured at `step_s` over a link of `rate_B_per_s`.

    The model solved for computation at each end: one calibration point, which neither end can miss; only
    steps at other rates are predictions. Where overlap is perfect it is the whole step. At rates above the
    calibrating one the ends change places, for there the sum falls and the maximum does not.
    """
    communication_s = communication_seconds(exchange, cluster, rate_B_per_s, WORST.traffic)
    if communication_s >= step_s:
        raise ValueError(
            f"nothing is left to compute: {WORST.traffic} traffic alone takes {communication_s:.3g} s "
            f"of a step of {step_s:.3g} s"
        )
    return Band(step_s, step_s - communication_s)


def speedup_band(
    exchange: Exchange, cluster: Cluster, slow_B_per_s: float, fast_B_per_s: float, fast_step_s: float
) -> Band:
    """Times that a step is shorter on the fast link, from one step measured there: slow step over fast one.

    `at_best` is of the best case, where a slow link costs least, so it is the lesser of the two.
    """
    compute_s = compute_left(exchange, cluster, fast_B_per_s, fast_step_s)
    slow_s = step_band(exchange, cluster, slow_B_per_s, compute_s)
    return Band(slow_s.at_best / fast_step_s, slow_s.at_worst / fast_step_s)


def step_flop(parameters: float, tokens_per_gpu: float, recompute: bool = True) -> float:
    """FLOP of one GPU in a step: 6 a parameter and token, 8 where the forward pass is done twice.

    Kaplan et al., arXiv 2001.08361, section 2.1; the further 2 is activation checkpointing's (arXiv
    2104.04473, appendix). Attention scores are left out: small while the sequence is short beside the width.
    """
    passes = FORWARD_FLOP + BACKWARD_FLOP + (FORWARD_FLOP if recompute else 0)
    return passes * parameters * tokens_per_gpu


def compute_seconds(
    parameters: float, tokens_per_gpu: float, achieved_FLOP_per_s: float, recompute: bool = True
) -> float:
    """Seconds of computation in a step: `step_flop` over the FLOP/s that one GPU achieves, not its peak."""
    return step_flop(parameters, tokens_per_gpu, recompute) / achieved_FLOP_per_s


def achieved_rate(
    parameters: float, tokens_per_gpu: float, compute_s: float, recompute: bool = True
) -> float:
    """FLOP/s that one GPU achieved, recomputation counted, where a step's computation took `compute_s`."""
    return step_flop(parameters, tokens_per_gpu, recompute) / compute_s


def rate_that_suffices(exchange: Exchange, cluster: Cluster, compute_s: Band, added: float = 0.05) -> Band:
    """B/s of link from which the network adds at most the share `added` to the seconds of computation.

    `step_seconds` = (1 + added) compute_s, solved for the rate. Sum: bytes/(added compute_s - latency).
    Maximum: bytes/((1 + added) compute_s - latency). Infinite where latency alone adds more; 0 on one node.
    """
    latency_s = latency_seconds(exchange, cluster)

    def solve(traffic_B: float, room_s: float) -> float:
        if traffic_B == 0:
            return 0.0
        return traffic_B / room_s if room_s > 0 else math.inf

    return Band(
        solve(
            link_bytes(exchange, cluster, BEST.traffic),
            (1 + added) * compute_s.at_best - latency_s,
        ),
        solve(link_bytes(exchange, cluster, WORST.traffic), added * compute_s.at_worst - latency_s),
    )


@dataclass(frozen=True, slots=True)
class Sweep:
    """Models by nodes by rates, the batch of a GPU and what it achieves being the same in all of them.

    It asks nothing after memory: a model is swept also where a strategy could not hold it.
    """

    tokens_per_gpu: float
    achieved_FLOP_per_s: float
    gpus_per_node: int = 8
    latency_s: float = 0.0
    recompute: bool = True
    strategy: Strategy = "fsdp"
    element_B: float = 2.0
    gradient_B: float | None = None
    units: int = 1
    models: Sequence[float] = MODELS
    nodes: Sequence[int] = NODES
    rates_B_per_s: Sequence[float] = tuple(gbit * 1e9 / 8 for gbit in LINKS_GBIT_PER_S)


class SweepRow(NamedTuple):
    """Seconds a step of one model over one link, and the rates from which a link adds 5 % at most."""

    parameters: float
    nodes: int
    rate_B_per_s: float
    compute_s: float
    best_s: float
    worst_s: float
    enough_at_best_B_per_s: float
    enough_at_worst_B_per_s: float


def sweep_rows(sweep: Sweep) -> Iterator[SweepRow]:
    """Seconds a step against link rate in B/s: `step_band`, `compute_seconds`, `rate_that_suffices`."""
    for parameters in sweep.models:
        exchange = Exchange(parameters, sweep.strategy, sweep.element_B, sweep.gradient_B, sweep.units)
        compute_s = Band.same(
            compute_seconds(parameters, sweep.tokens_per_gpu, sweep.achieved_FLOP_per_s, sweep.recompute)
        )
        for nodes in sweep.nodes:
            cluster = Cluster(nodes, sweep.gpus_per_node, sweep.latency_s)
            enough = rate_that_suffices(exchange, cluster, compute_s)
            for rate_B_per_s in sweep.rates_B_per_s:
                step_s = step_band(exchange, cluster, rate_B_per_s, compute_s)
                yield SweepRow(parameters, nodes, rate_B_per_s, compute_s.at_best, *step_s, *enough)
