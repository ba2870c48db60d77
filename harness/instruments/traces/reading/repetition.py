"""Find the steps of a trace by its kernels: the sequence of their names repeats."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.traces.reading.trace import EventKind, Ints, RankTrace

LEAST_PERIOD, LEAST_NAMES = 8, 4
"""A step has at least so many kernels, and so many different ones: fewer repeat within a step, too."""

ALIKE = 0.98
"""Share of the kernels that have the name of the kernel one period later."""


SAMPLE = 512
"""Kernels that are compared first."""


class RepeatedKernels(NamedTuple):
    """A number of kernels that repeats, when each repetition begins, and at last its end."""

    period: int
    edges_ns: Ints


def repeated_kernels(trace: RankTrace) -> RepeatedKernels | None:
    """Return the shortest repetition that covers all kernels, None where there is none.

    Layers repeat within a step. They differ from steps by the kernels that are not part of them: each name
    must be in every repetition.
    """
    kernels = np.flatnonzero(trace.of_kind(EventKind.KERNEL))
    launch = trace.launch_of[kernels]
    called = np.where(launch >= 0, trace.start_ns[np.maximum(launch, 0)], trace.start_ns[kernels])
    kernels = kernels[np.argsort(called, kind="stable")]
    names = trace.name_of[kernels]
    period = _period(names)
    if period is None:
        return None
    count = len(names) // period
    first = np.minimum.accumulate(trace.start_ns[kernels][::-1])[::-1]  # of this and all later ones
    edges = [int(first[i * period]) for i in range(count)]
    last = kernels[: count * period]
    edges.append(int(first[count * period]) if count * period < len(names) else int(trace.end_ns[last].max()))
    edges_ns = np.asarray(edges, np.int64)
    return RepeatedKernels(period, edges_ns) if np.all(np.diff(edges_ns) > 0) else None


def _period(names: Ints) -> int | None:
    """Return the shortest period of a sequence with at least two repetitions, None where there is none.

    It is a distance between two kernels of the rarest name, which each repetition must have.
    """
    different, counts = np.unique(names, return_counts=True)
    if len(names) < 2 * LEAST_PERIOD or len(different) < LEAST_NAMES:
        return None
    rarest = np.flatnonzero(names == different[counts.argmin()])
    for period in (rarest[1:] - rarest[0]).tolist():
        repetitions = len(names) // period
        if period < LEAST_PERIOD or repetitions > len(rarest) or repetitions < 2:
            continue
        if _alike(names[period : period + SAMPLE], names[:SAMPLE]) and _alike(names[period:], names):
            return int(period)
    return None


def _alike(later: Ints, earlier: Ints) -> bool:
    return bool(np.mean(later == earlier[: len(later)]) >= ALIKE)
