"""The interconnect_formula suite: step times of models that are too large for this host, calculated.

The baseline is FSDP2 over the workload's link, in bf16. Each time is a pair of bounds, see `step_bounds`. The
computation is the step's FLOP over a share of the GPU's peak that the workload states, or over the rate of
the run which Table III quotes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.records import Json, Origin, Reading, Unavailable, WrongResult
from suites.interconnect_formula.step_bounds import (
    BEST,
    BestAndWorstCase,
    Subject,
    compute_left,
    model_size,
    step_bounds,
    sufficient_rate,
    validate_states,
)
from suites.interconnect_formula.workload import Workload
from suites.training.step_time import published as published_run
from suites.training.step_time.collectives import Cluster, Exchange, crossing_share, training_flop

PUBLISHED_TOKENS_PER_GPU = 4 * 1024
"""Four sequences of 1,024 tokens: the defaults of the script that the run's author published. The run's own
values are not stated."""

OTHER_MFUS = (0.2, 0.4, 0.6)
"""Shares of the peak for which step times are calculated as well: what a slow and a fast job achieve."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: FSDP2 over the workload's own link; raises `Unavailable`."""
    given = Workload(**workload)
    if given.parameters is None and given.hf_config is None:
        raise Unavailable("parameters: missing; expected a number, or suite.workload_from=config.json")
    if given.mfu is not None and given.peak_FLOP_per_s is None:
        raise Unavailable(
            f"mfu={given.mfu:g}: the peak of {given.device_name or 'the device'} is unknown; choose a "
            "hardware= with a bf16 rate, or give peak_FLOP_per_s"
        )
    if given.parameters is None:
        size = model_size(given.hf_config or {})
        given = replace(given, num_hidden_layers=size.num_hidden_layers)
        parameters, active = float(size.parameters), float(size.active)
    else:
        parameters = active = given.parameters
    subject = Subject(given, parameters, given.active_parameters or active, given.link_B_per_s)
    validate_states(subject)
    return subject


def check(subject: Subject) -> None:
    """Compare a step with the least that any algorithm computes and sends; raises `WrongResult`.

    An update needs the sum of all nodes' gradients: at the least, the part that each node does not keep
    crosses its link once.
    """
    cluster = subject.workload.cluster
    gradients_B = published_run.ELEMENT_B * subject.parameters / subject.gradient_accumulation_steps
    least_B = crossing_share(cluster, BEST.traffic) * gradients_B
    compute_s = compute_bounds(subject)
    least_s = max(compute_s.at_best, least_B / subject.link_B_per_s)
    step_s = step_bounds(subject.exchange, cluster, subject.link_B_per_s, compute_s).at_best
    if not least_s <= step_s < math.inf:
        raise WrongResult(f"a step takes {step_s:.4g} s; no algorithm takes less than {least_s:.4g} s")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may require, and what the times assume."""
    workload = subject.workload
    return {
        "device": "cuda",
        "device_name": workload.device_name,
        "strategy": "fsdp2",
        "precision": "bf16",
        "nodes": str(workload.nodes),
        "ranks_per_node": str(workload.ranks_per_node),
        "network": "a formula",
        "link_B_per_s": f"{subject.link_B_per_s:g}",
        "tokens_per_gpu": str(workload.tokens_per_gpu),
        "compute_rate": "the published run's" if workload.mfu is None else f"MFU {workload.mfu:.0%}",
    }


def sample(subject: Subject) -> Iterator[Reading]:
    """Calculate seconds per micro-batch, what they assume, and the link rates that suffice."""
    workload, cluster = subject.workload, subject.workload.cluster
    compute_s = compute_bounds(subject)
    baseline = replace(
        subject, link_B_per_s=workload.link_B_per_s, gradient_accumulation_steps=1, hybrid_shard=False
    )
    slow_s = step_bounds(baseline.exchange, cluster, baseline.link_B_per_s, compute_s)
    step_s = step_bounds(subject.exchange, cluster, subject.link_B_per_s, compute_s)
    speedup = BestAndWorstCase(slow_s.at_best / step_s.at_best, slow_s.at_worst / step_s.at_worst)
    yield Reading("link_rate", "B/s", subject.link_B_per_s, Origin.CALCULATED, "paper")
    yield from bounds_readings("time", "s", step_s)
    yield from bounds_readings("speedup", "1", speedup)
    yield from bounds_readings("enough_rate", "B/s", sufficient_rate(subject.exchange, cluster, compute_s))
    if subject.exchange != baseline.exchange:
        ends = sufficient_rate(baseline.exchange, cluster, compute_s, other=subject.exchange)
        yield from bounds_readings("gain_ends_rate", "B/s", ends)
    yield from assumptions(subject, compute_s)
    if workload.peak_FLOP_per_s is not None:
        for mfu in OTHER_MFUS:
            other_s = BestAndWorstCase.same(flop(subject) / (mfu * workload.peak_FLOP_per_s))
            bounds_s = step_bounds(subject.exchange, cluster, subject.link_B_per_s, other_s)
            for method, value in zip(("at best", "at worst"), bounds_s, strict=True):
                yield Reading("time", "s", value, Origin.CALCULATED, f"{method}, MFU {mfu:.0%}")


def assumptions(subject: Subject, compute_s: BestAndWorstCase) -> Iterator[Reading]:
    """Yield the sizes and the compute rate that the times assume, and what the variant needs."""
    workload = subject.workload
    rate = BestAndWorstCase(*(flop(subject) / seconds for seconds in compute_s))
    for metric, unit, value in (
        ("parameters", "1", subject.parameters),
        ("active_parameters", "1", subject.active_parameters),
        ("tokens_per_gpu", "1", float(workload.tokens_per_gpu)),
        ("tokens_per_update", "1", float(subject.tokens_per_update)),
        ("state_memory", "B", subject.state_B),
        ("room", "B", workload.room_B),
    ):
        yield Reading(metric, unit, value, Origin.CALCULATED)
    yield from bounds_readings("computation", "s", compute_s)
    yield from bounds_readings("compute_rate", "FLOP/s", rate)
    if workload.peak_FLOP_per_s is not None:
        share = BestAndWorstCase(*(one / workload.peak_FLOP_per_s for one in rate))
        yield from bounds_readings("compute_share", "1", share)


def bounds_readings(metric: str, unit: str, bounds: BestAndWorstCase) -> Iterator[Reading]:
    """Yield each bound by its own method, and both as samples of the method `band`."""
    for method, value in (("at best", bounds.at_best), ("at worst", bounds.at_worst)):
        yield Reading(metric, unit, value, Origin.CALCULATED, method)
        yield Reading(metric, unit, value, Origin.CALCULATED, "band")


def flop(subject: Subject) -> float:
    """Return the model FLOP of one GPU per micro-batch."""
    return float(training_flop(subject.active_parameters, subject.workload.tokens_per_gpu))


def compute_bounds(subject: Subject) -> BestAndWorstCase:
    """Return the seconds of computation per micro-batch under both assumptions.

    Without `mfu` the rate is that of the published run: its FLOP over its measured step, less the
    communication over the fast link.
    """
    workload = subject.workload
    if workload.mfu is not None and workload.peak_FLOP_per_s is not None:
        return BestAndWorstCase.same(flop(subject) / (workload.mfu * workload.peak_FLOP_per_s))
    published = Exchange(published_run.PARAMETERS, "fsdp", published_run.ELEMENT_B)
    cluster = Cluster(published_run.NODES, published_run.GPUS_PER_NODE)
    left = compute_left(published, cluster, published_run.FAST_B_PER_S, published_run.FAST_STEP_S)
    share = flop(subject) / float(training_flop(published_run.PARAMETERS, PUBLISHED_TOKENS_PER_GPU))
    return BestAndWorstCase(*(seconds * share for seconds in left))
