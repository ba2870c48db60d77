"""The interconnect_formula suite: step times of models that are too large for this host, calculated.

The baseline is FSDP2 over the workload's link, in bf16. Each time is a pair of bounds, see `comm_model`. The
computation is calibrated by one measured step, that of the run which Table III quotes on its fast link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.records import Json, Origin, Reading, Unavailable
from suites.interconnect_formula.comm_model import (
    Bounds,
    Cluster,
    Exchange,
    achieved_rate,
    compute_left,
    compute_seconds,
    step_bounds,
    sufficient_rate,
)
from suites.interconnect_formula.subject import Subject, Workload
from suites.training import published_run

TOKENS_PER_GPU = 4 * 1024
"""Four sequences of 1,024 tokens: the defaults of the script that the run's author published. The run's own
values are not stated."""

STATE_B = 16
"""Bytes per parameter in mixed precision with Adam: arXiv 1910.02054, section 3.1."""

GPU_B = 80e9
"""Memory of an H100, by its data sheet."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: FSDP2 over the workload's own link."""
    given = Workload(**workload)
    return Subject(given, given.link_B_per_s)


def check(subject: Subject) -> None:
    """Raise `Unavailable` for shards that do not fit into the GPUs of one node."""
    ranks = subject.workload.ranks_per_node
    share_B = STATE_B * subject.workload.parameters / ranks
    if subject.hybrid_shard and share_B > GPU_B:
        raise Unavailable(
            f"parameters={subject.workload.parameters:g}: {share_B / 1e9:.0f} GB of states for each of a "
            f"node's {ranks} GPUs, which have {GPU_B / 1e9:.0f} GB"
        )


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may require; the formulas describe the published run's nodes."""
    return {
        "device": "cuda",
        "device_name": "H100",
        "strategy": "fsdp2",
        "nodes": str(subject.workload.nodes),
        "ranks_per_node": str(subject.workload.ranks_per_node),
        "network": "a formula",
        "link_B_per_s": f"{subject.link_B_per_s:g}",
    }


def sample(subject: Subject) -> Iterator[Reading]:
    """Calculate the seconds per micro-batch, the speed-up over the baseline, and the link rate that
    suffices."""
    workload, cluster = subject.workload, subject.workload.cluster
    compute_s = compute_bounds(workload)
    baseline = Subject(workload, workload.link_B_per_s)
    slow_s = step_bounds(baseline.exchange, cluster, baseline.link_B_per_s, compute_s)
    step_s = step_bounds(subject.exchange, cluster, subject.link_B_per_s, compute_s)
    speedup = Bounds(slow_s.at_best / step_s.at_best, slow_s.at_worst / step_s.at_worst)
    yield Reading("link_rate", "B/s", subject.link_B_per_s, Origin.CALCULATED, "paper")
    yield from bounds_readings("time", "s", step_s)
    yield from bounds_readings("speedup", "1", speedup)
    yield from bounds_readings("enough_rate", "B/s", sufficient_rate(subject.exchange, cluster, compute_s))


def bounds_readings(metric: str, unit: str, bounds: Bounds) -> Iterator[Reading]:
    """Yield each bound by its own method, and both as samples of the method `band`."""
    for method, value in (("at best", bounds.at_best), ("at worst", bounds.at_worst)):
        yield Reading(metric, unit, value, Origin.CALCULATED, method)
        yield Reading(metric, unit, value, Origin.CALCULATED, "band")


def compute_bounds(workload: Workload) -> Bounds:
    """Return the seconds of computation per step under both assumptions.

    For the published run it is its measured step less the communication over the fast link. For every other
    workload it is the step's FLOP over the rate that the published run achieved.
    """
    published = Exchange(published_run.PARAMETERS, "fsdp", published_run.ELEMENT_B)
    cluster = Cluster(published_run.NODES, published_run.GPUS_PER_NODE)
    left = compute_left(published, cluster, published_run.FAST_B_PER_S, published_run.FAST_STEP_S)
    if (workload.parameters, workload.cluster) == (published.parameters, cluster):
        return left
    rates = (achieved_rate(published.parameters, TOKENS_PER_GPU, seconds) for seconds in left)
    return Bounds(*(compute_seconds(workload.parameters, TOKENS_PER_GPU, rate) for rate in rates))


def close(subject: Subject) -> None:
    """Do nothing: nothing was opened."""
