"""The interconnect_formula suite: step times of models that are too large for this host, calculated.

The baseline is FSDP2 over the workload's link, in bf16. Each time is a pair of bounds, see `comm_model`. The
computation is calibrated by one measured step, that of the run which Table III quotes on its fast link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from harness.records import Json, Origin, Reading, WrongResult
from suites.interconnect_formula.comm_model import (
    BEST,
    BestAndWorstCase,
    Cluster,
    Exchange,
    achieved_rate,
    compute_left,
    compute_seconds,
    crossing_share,
    step_bounds,
    sufficient_rate,
)
from suites.interconnect_formula.subject import Subject, Workload
from suites.training import published_run

TOKENS_PER_GPU = 4 * 1024
"""Four sequences of 1,024 tokens: the defaults of the script that the run's author published. The run's own
values are not stated."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: FSDP2 over the workload's own link."""
    given = Workload(**workload)
    return Subject(given, given.link_B_per_s)


def check(subject: Subject) -> None:
    """Compare a step with the least that any algorithm computes and sends; raises `WrongResult`.

    An update needs the sum of all nodes' gradients: at the least, the part that each node does not keep
    crosses its link once.
    """
    workload, cluster = subject.workload, subject.workload.cluster
    gradients_B = published_run.ELEMENT_B * workload.parameters / subject.gradient_accumulation_steps
    least_B = crossing_share(cluster, BEST.traffic) * gradients_B
    compute_s = compute_bounds(workload)
    least_s = max(compute_s.at_best, least_B / subject.link_B_per_s)
    step_s = step_bounds(subject.exchange, cluster, subject.link_B_per_s, compute_s).at_best
    if not least_s <= step_s < math.inf:
        raise WrongResult(f"a step takes {step_s:.4g} s; no algorithm takes less than {least_s:.4g} s")


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
    """Calculate seconds per micro-batch, the speed-up over the baseline and the link rate that suffices."""
    workload, cluster = subject.workload, subject.workload.cluster
    compute_s = compute_bounds(workload)
    baseline = Subject(workload, workload.link_B_per_s)
    slow_s = step_bounds(baseline.exchange, cluster, baseline.link_B_per_s, compute_s)
    step_s = step_bounds(subject.exchange, cluster, subject.link_B_per_s, compute_s)
    speedup = BestAndWorstCase(slow_s.at_best / step_s.at_best, slow_s.at_worst / step_s.at_worst)
    yield Reading("link_rate", "B/s", subject.link_B_per_s, Origin.CALCULATED, "paper")
    yield from bounds_readings("time", "s", step_s)
    yield from bounds_readings("speedup", "1", speedup)
    yield from bounds_readings("enough_rate", "B/s", sufficient_rate(subject.exchange, cluster, compute_s))


def bounds_readings(metric: str, unit: str, bounds: BestAndWorstCase) -> Iterator[Reading]:
    """Yield each bound by its own method, and both as samples of the method `band`."""
    for method, value in (("at best", bounds.at_best), ("at worst", bounds.at_worst)):
        yield Reading(metric, unit, value, Origin.CALCULATED, method)
        yield Reading(metric, unit, value, Origin.CALCULATED, "band")


def compute_bounds(workload: Workload) -> BestAndWorstCase:
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
    return BestAndWorstCase(*(compute_seconds(workload.parameters, TOKENS_PER_GPU, rate) for rate in rates))
