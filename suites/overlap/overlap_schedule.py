"""The overlap_schedule suite: in what order 8 GPUs exchange shards so that communication hides behind a GEMM.

Schedules are simulated by links. Next to them a model of two stages is compared with published results; none
of its inputs is fitted to a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations

import numpy as np

from harness.records import Json, Origin, Reading, WrongResult
from suites.overlap.links import (
    Links,
    ScheduleResult,
    Subject,
    Transfer,
    closed_form_s,
    model_of,
    refuse_indivisible,
    simulate,
)
from suites.overlap.workload import OverlapScheduleWorkload

TOLERANCE = 1e-8
"""Relative rounding of a simulated time and of bytes."""

SHARES = (0.5, 0.6, 0.7, 0.8)
"""Shares of the peak at which the model is calculated as well."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: the collective at the topology's best rate, and the GEMM before or after it.

    Raises `Unavailable` where sizes do not divide, or a time is neither published nor can be calculated.
    """
    subject = Subject(OverlapScheduleWorkload(**workload))
    refuse_indivisible(subject)
    model_of(subject.workload)
    return subject


def check(subject: Subject) -> None:
    """Compare a schedule with its bound, its closed form and its links' bytes; raises `WrongResult`."""
    if subject.workload.kind == "published":
        return
    result, model = simulate(subject), model_of(subject.workload)
    if result.time_s < model.longer_s * (1 - TOLERANCE):
        raise WrongResult(f"{result.time_s:.6g} s: no schedule takes less than {model.longer_s:.6g} s")
    expected_s = closed_form_s(subject)
    if expected_s is not None and abs(result.time_s / expected_s - 1) > TOLERANCE:
        raise WrongResult(f"simulated {result.time_s:.9g} s, by its closed form {expected_s:.9g} s")
    _refuse_lost_bytes(subject, result)


def _refuse_lost_bytes(subject: Subject, result: ScheduleResult) -> None:
    """Raise `WrongResult` where a link carried another number of bytes than all shards that cross it."""
    given = subject.workload
    links = Links(given.topology, given.ranks, subject.rate_B_per_s)
    expected_L = np.zeros_like(result.carried.bytes_L)
    for source, target in permutations(range(given.ranks), 2):
        expected_L[list(links.path(Transfer(source, target, given.shard_B)))] += given.shard_B
    if not np.allclose(result.carried.bytes_L, expected_L, rtol=TOLERANCE, atol=0):
        link = int(np.argmax(np.abs(result.carried.bytes_L - expected_L)))
        carried_B = result.carried.bytes_L[link]
        raise WrongResult(f"link {link} carried {carried_B:.9g} B; its shards have {expected_L[link]:.9g} B")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may name, and what the times assume."""
    given = subject.workload
    scheduled = given.kind == "schedule"
    return {
        "device": "cuda",
        "device_name": given.device_name,
        "operation": given.operation if scheduled else "",
        "topology": given.topology if scheduled else "",
        "ranks": str(given.ranks) if scheduled else "",
        "computation": computation(given),
        "communication": communication(given),
        "published_by": given.published_by,
        "provenance": given.provenance,
        "source": given.source,
    }


def computation(given: OverlapScheduleWorkload) -> str:
    """Return where the model's seconds of computation come from."""
    return "published" if given.compute_s is not None else f"{given.compute_share:.0%} of peak, assumed"


def communication(given: OverlapScheduleWorkload) -> str:
    """Return where the model's seconds of communication come from."""
    return "published" if given.communication_s is not None else "bytes / rate of the links"


def sample(subject: Subject) -> Iterator[Reading]:
    """Simulate the schedule; with the baseline, calculate the model and compare it with what is published."""
    if subject.workload.kind == "schedule":
        yield from simulated(subject)
    if not subject.overlapped:
        yield from modelled(subject.workload)
        yield from published(subject.workload)


def simulated(subject: Subject) -> Iterator[Reading]:
    """Yield what the schedule takes, and how it uses the links."""
    result, model = simulate(subject), model_of(subject.workload)
    exposed_s = result.time_s - model.compute_s
    for metric, unit, value in (
        ("time", "s", result.time_s),
        ("exposed_communication", "s", exposed_s if exposed_s > TOLERANCE * result.time_s else 0.0),
        ("communication", "s", result.communication_s),
        ("model_reached", "1", model.overlapped_s / result.time_s),
        ("rate_reached", "1", model.communication_s / result.communication_s),
        ("busiest_link", "B", float(result.carried.bytes_L.max())),
    ):
        yield Reading(metric, unit, value, Origin.SIMULATED)
    yield Reading("computation", "s", model.compute_s, Origin.CALCULATED)
    ratio = model.communication_s / model.compute_s
    yield Reading("communication_over_computation", "1", ratio, Origin.CALCULATED)


def modelled(given: OverlapScheduleWorkload) -> Iterator[Reading]:
    """Yield the model's times and speed-up, and the speed-up at other shares of the peak."""
    model = model_of(given)
    for metric, unit, value in (
        ("sequential", "s", model.sequential_s),
        ("overlapped", "s", model.overlapped_s),
        ("speedup", "1", model.speedup),
    ):
        yield Reading(metric, unit, value, Origin.CALCULATED, "model")
    yield Reading("overlapped", "s", model.longer_s, Origin.CALCULATED, "no first chunk")
    if given.compute_s is None:
        yield Reading("compute_share", "1", given.compute_share, Origin.CALCULATED)
        for share in SHARES:
            speedup = model_of(given, share).speedup
            yield Reading("speedup", "1", speedup, Origin.CALCULATED, f"at {share:.0%} of peak")


def published(given: OverlapScheduleWorkload) -> Iterator[Reading]:
    """Yield published values, and the model's relative error of each; of speed-ups at other shares too."""
    model = model_of(given)
    for metric, unit, theirs, ours in (
        ("sequential", "s", given.published_sequential_s, model.sequential_s),
        ("overlapped", "s", given.published_overlapped_s, model.overlapped_s),
        ("speedup", "1", given.speedup_of_source, model.speedup),
    ):
        if theirs is not None:
            yield Reading(metric, unit, theirs, Origin.PUBLISHED, "published")
            yield Reading("relative_error", "1", ours / theirs - 1, Origin.CALCULATED, metric)
    if given.flux_speedup is not None:
        yield Reading("speedup", "1", given.flux_speedup, Origin.PUBLISHED, "FLUX")
    if given.speedup_of_source is not None and given.compute_s is None:
        for share in SHARES:
            error = model_of(given, share).speedup / given.speedup_of_source - 1
            yield Reading("relative_error", "1", error, Origin.CALCULATED, f"speedup at {share:.0%} of peak")
