"""Efficiencies of variants over platforms, and their harmonic mean: performance portability.

Pennycook, Sewall and Lee, arXiv 1611.07409, define it as |H| / sum(1 / e_i) over the platforms i of a set
H, and as 0 where one is not supported. Application efficiency e_i is the best observed time on i over this
one's; architectural efficiency is the achieved rate over the platform's peak. Here a platform is this device
with one workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.data.result_index import ResultIndex, Value


def performance_portability(efficiencies: Sequence[float]) -> float:
    """Return the harmonic mean, 0 where one is 0; raises ValueError without any."""
    if not efficiencies:
        raise ValueError("performance portability is defined over at least one platform")
    if min(efficiencies) <= 0:
        return 0.0
    return len(efficiencies) / sum(1 / one for one in efficiencies)


def platforms(index: ResultIndex, fields: Mapping[str, Any]) -> list[str]:
    """Return the workloads on which any variant was timed."""
    return index.names("workload", fields["where"], fields["metric"])


def variants(index: ResultIndex, fields: Mapping[str, Any]) -> list[str]:
    """Return the variants that were timed on any of them, without the one that repeats the baseline."""
    names = index.names("optimization", fields["where"], fields["metric"])
    return [name for name in names if name != fields["noise"]]


def application(index: ResultIndex, fields: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return by variant and platform the best time of any variant over its own; 0 where it has none."""
    found: dict[str, dict[str, float]] = {variant: {} for variant in variants(index, fields)}
    for workload in platforms(index, fields):
        times = {variant: time_of(index, workload, variant, fields) for variant in found}
        best = min(value.median for value in times.values() if value is not None)
        for variant, value in times.items():
            found[variant][workload] = best / value.median if value is not None else 0.0
    return found


def architectural(index: ResultIndex, fields: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return by variant and platform its rate over this device's own; only platforms with products count.

    The rate is the block's `work` of the baseline over the variant's time; the device's is its `peak`.
    """
    found: dict[str, dict[str, float]] = {variant: {} for variant in variants(index, fields)}
    for workload in platforms(index, fields):
        work = index.first(workload, fields["baseline"], fields["work"])
        peak = index.first(workload, fields["baseline"], fields["peak"])
        if work is None or peak is None or not work.median:
            continue
        for variant in found:
            value = time_of(index, workload, variant, fields)
            found[variant][workload] = work.median / value.median / peak.median if value is not None else 0.0
    return found


def time_of(index: ResultIndex, workload: str, variant: str, fields: Mapping[str, Any]) -> Value | None:
    """Return a variant's time; None where it has none, as where its result is wrong."""
    return index.get(workload, variant, fields["metric"], fields["method"])
