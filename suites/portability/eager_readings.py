"""What is read of the baseline alone: the captured graph, its graph breaks, and this CPU's own rate.

Lines of code that a variant needs of its own, and those that all share.

A user's config.json: whether its step fits with its float64 reference.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

import torch

from harness.instruments.memory.allocator import shortage
from harness.records import Note, Origin, Reading
from suites.portability import graph, problem
from suites.portability.graph import one_line
from suites.portability.session import Session
from suites.portability.subject import Subject
from suites.training.models import huggingface, model

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
    kinds = {str(one.target) for one in capture.nodes}
    yield Reading("operators", "1", len(capture.nodes), Origin.CALCULATED, "nodes")
    yield Reading("operators", "1", len(kinds), Origin.CALCULATED, "kinds")
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


def source_lines(subject: Subject) -> Iterator[Reading]:
    """Yield the lines of the step that all engines share, those of this one alone, and their divergence.

    Our Triton kernels are lines of their own, the same for every target.

    Code divergence of two platforms is the Jaccard distance of their lines, 1 - shared / all of both (Harrell
    and Kitson, P3HPC 2018, doi 10.1109/P3HPC.2018.00006); here one of the two is eager PyTorch.
    """
    shared = sum(map(graph.lines_of, (model, problem, graph)))
    engine = subject.engine
    names = engine.rewritten if engine is not None else ()
    own = sum(graph.lines_of(graph.REWRITES[name][1]) for name in names)
    if engine is not None and not engine.takes_graph:
        from suites.portability.triton_engines import modules_of

        own += sum(map(graph.lines_of, modules_of(subject.workload)))
    yield Reading("source_lines", "1", shared, Origin.CALCULATED, "shared")
    yield Reading("source_lines", "1", own, Origin.CALCULATED, "own")
    yield Reading("code_divergence", "1", own / (shared + own), Origin.CALCULATED)


STEP_B, REFERENCE_B, ENGINE_B = 16 + 12, 8 * 7, 2 * 12
"""Bytes per parameter in fp32: of eager's weight, gradient, two moments and the graph's three inputs; of
float64's three inputs, gradient and three results; of one engine's inputs and results."""


def too_large(subject: Subject) -> str:
    """Return why a step of the model does not fit into this machine's memory; "" where it does."""
    workload = subject.workload
    if workload.hf_config is None:
        return ""
    with torch.device("meta"):
        model = huggingface.build(workload.hf_config)
    parameters = sum(one.numel() for one in model.parameters())
    lacking = shortage(parameters * (STEP_B + REFERENCE_B + ENGINE_B), torch.device("cpu"))
    if lacking is None:
        return ""
    size = f"{parameters / 1e6:,.0f} M parameters"
    fewer = "try a smaller suite.hf_defaults.num_hidden_layers"
    return f"a captured step of {size} with its float64 reference {lacking}; {fewer}"
