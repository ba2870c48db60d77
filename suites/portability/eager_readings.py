"""What is read of the baseline alone: the captured graph, its graph breaks, and this CPU's own rate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

import torch

from harness.records import Note, Origin, Reading
from suites.portability.capture.graph import one_line
from suites.portability.session import Session

SIDE = 1024
"""Rows and columns of the products that this CPU's rate is read from."""

PRODUCTS, BUDGET_S = 20, 1.0
"""Products at most, and seconds at most; the fastest counts."""

REASONS = 3
"""Reasons of graph breaks that are noted at most."""


def eager_readings(session: Session) -> Iterator[Reading | Note]:
    """Yield the graph's size and FLOP, its graph breaks, and the rate of a large product."""
    capture = session.capture
    yield Reading("capture_time", "s", capture.capture_s, Origin.MEASURED)
    yield Reading("operators", "1", len(capture.nodes), Origin.CALCULATED, "nodes")
    yield Reading(
        "operators", "1", len({str(one.target) for one in capture.nodes}), Origin.CALCULATED, "kinds"
    )
    yield Reading("flops", "1", capture.flops, Origin.CALCULATED)
    yield Reading("matmul_rate", "FLOP/s", matmul_rate(session.subject.workload.torch_dtype), Origin.MEASURED)
    yield from graph_breaks(session)


def graph_breaks(session: Session) -> Iterator[Reading | Note]:
    """Yield how often torch.compile's own capture of the forward pass breaks off, and the first reasons."""
    forward = session.problem.forward
    torch._dynamo.reset()
    try:
        found = torch._dynamo.explain(forward.function)(*forward.inputs)
    except Exception as error:  # Dynamo raises many kinds, for code that it cannot follow
        yield Note(f"graph breaks: not known, {one_line(error)}")
        return
    finally:
        torch._dynamo.reset()
    yield Reading("graph_breaks", "1", found.graph_break_count, Origin.MEASURED)
    for one in found.break_reasons[:REASONS]:
        yield Note(f"graph break: {one_line(one.reason)}")


@cache
def matmul_rate(dtype: torch.dtype) -> float:
    """Return the FLOP/s of a product of square matrices, the fastest of several, on torch's threads."""
    left, right = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    fastest_s, end_s = float("inf"), time.perf_counter() + BUDGET_S
    for _ in range(PRODUCTS):
        begin_s = time.perf_counter()
        left @ right
        now_s = time.perf_counter()
        fastest_s = min(fastest_s, now_s - begin_s)
        if now_s > end_s:
            break
    return 2.0 * SIDE**3 / fastest_s
