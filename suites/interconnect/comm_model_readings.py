"""Steps too large for this host, by closed formula: the paper's run, and what other models need of a network.

A band: the best case moves what any algorithm must and hides all it can, the worst moves a ring's traffic and
hides nothing. A workload's computation is what its step leaves beside the fast link, where one was measured,
or its operations over the rate that the paper's run reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.records import Origin, Reading, Unavailable
from suites.interconnect import scaling
from suites.interconnect.comm_model import (
    Band,
    Cluster,
    Exchange,
    Strategy,
    achieved_rate,
    compute_left,
    compute_seconds,
    rate_that_suffices,
    step_band,
)
from suites.interconnect.subject import Plan, Subject, Workload

TOKENS_PER_GPU = 4 * 1024
"""Four sequences of 1,024: the defaults of the script that its author published; the run does not say."""


STATE_B = 16
"""Of a parameter in mixed precision with Adam: arXiv 1910.02054, section 3.1."""

GPU_B = 80e9
"""An H100's memory, by its data sheet."""


def exchange_of(workload: Workload, plan: Plan) -> Exchange:
    """Parameters in shards, of all GPUs or of a node's, in two bytes; gradients too, once for all batches.

    Each layer is gathered and reduced apart; latency counts as if with every batch.
    """
    strategy: Strategy = "fsdp" if plan.shard_within is None else "hybrid"
    gradient_B = scaling.ELEMENT_B / plan.accumulate
    return Exchange(
        parameters_of(workload), strategy, scaling.ELEMENT_B, gradient_B, workload.num_hidden_layers
    )


def parameters_of(workload: Workload) -> float:
    """How many; raises ValueError for a workload that is trained here."""
    if workload.parameters is None:
        raise ValueError("a workload that is trained here is no formula's")
    return workload.parameters


def cluster_of(workload: Workload) -> Cluster:
    """Its nodes."""
    return Cluster(workload.nodes, workload.ranks_per_node, workload.latency_s)


def compute_of(workload: Workload) -> Band:
    """Seconds of computation at either end of the band."""
    paper = Exchange(scaling.PARAMETERS, "fsdp", scaling.ELEMENT_B)
    there = Cluster(scaling.NODES, scaling.GPUS_PER_NODE)
    left = compute_left(paper, there, scaling.FAST_B_PER_S, scaling.FAST_STEP_S)
    if (parameters_of(workload), cluster_of(workload)) == (paper.parameters, there):
        return left
    rates = (achieved_rate(scaling.PARAMETERS, TOKENS_PER_GPU, seconds) for seconds in left)
    return Band(*(compute_seconds(parameters_of(workload), TOKENS_PER_GPU, rate) for rate in rates))


def readings(subject: Subject) -> Iterator[Reading]:
    """Seconds a batch over the subject's link, the gain over the baseline, and the rate that suffices."""
    workload, compute_s = subject.workload, compute_of(subject.workload)
    exchange, cluster = exchange_of(workload, subject.plan), cluster_of(workload)
    rate = subject.link_B_per_s
    step_s = step_band(exchange, cluster, rate, compute_s)
    baseline = exchange_of(workload, Plan(workload.strategy))
    slow_s = step_band(baseline, cluster, workload.link_B_per_s, compute_s)
    enough = rate_that_suffices(exchange, cluster, compute_s)

    def band(metric: str, unit: str, figures: Band) -> Iterator[Reading]:
        for method, figure in (("at best", figures.at_best), ("at worst", figures.at_worst)):
            yield Reading(metric, unit, figure, Origin.CALCULATED, method)
            yield Reading(metric, unit, figure, Origin.CALCULATED, "band")

    yield Reading("link_rate", "B/s", rate, Origin.CALCULATED, "paper")
    yield from band("time", "s", step_s)
    yield from band("speedup", "1", Band(slow_s.at_best / step_s.at_best, slow_s.at_worst / step_s.at_worst))
    yield from band("enough_rate", "B/s", enough)


def refuse_other(subject: Subject) -> None:
    """Raises `Unavailable` for a variant without a formula, and for shards that a node's GPUs cannot hold."""
    plan, workload = subject.plan, subject.workload
    known = replace(Plan(workload.strategy), accumulate=plan.accumulate, shard_within=plan.shard_within)
    if plan != known:
        raise Unavailable("of FSDP, hybrid shards and accumulated batches alone there are formulas")
    share_B = STATE_B * parameters_of(workload) / (plan.shard_within or cluster_of(workload).gpus)
    if plan.shard_within is not None and share_B > GPU_B:
        raise Unavailable(
            f"states of {share_B / 1e9:.0f} GB for each of a node's {plan.shard_within} GPUs, which have "
            f"{GPU_B / 1e9:.0f} GB"
        )


def conditions(workload: Workload) -> Mapping[str, str]:
    """What a claim may ask after: the formula speaks of the paper's own nodes."""
    return {
        "device": "cuda",
        "device_name": "H100",
        "strategy": "fsdp2",
        "nodes": str(workload.nodes),
        "ranks_per_node": str(workload.ranks_per_node),
        "network": "a formula",
    }
