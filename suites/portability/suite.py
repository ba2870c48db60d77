"""The portability suite: one step captured from PyTorch, and what each compiler makes of it for each target.

The baseline is eager PyTorch. Every engine gets the same graph of core aten operators; its outputs and
gradients are compared with float64's before it is timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cache

import torch

from harness.instruments.memory.allocator import shortage
from harness.records import Json, Note, Origin, Reading
from suites.portability import graph, problem
from suites.portability import session as sessions
from suites.portability.graph import one_line
from suites.portability.session import Session, coverage
from suites.portability.subject import Subject
from suites.portability.workload import Workload
from suites.training.models import huggingface, model

CLASSES = {"matmul": "matmul", "attention": "attention", "block": "block", "training_step": "step"}
"""Classes of operations; all others are pointwise."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for a model that cannot be built."""
    return Subject(problem.adopted(Workload(**workload)), seed)


def bf16_FLOP(subject: Subject) -> float:
    """Return the FLOP of one call's bf16 products, of the captured graph; 0 in fp32."""
    if subject.workload.dtype != "bf16":
        return 0.0
    return sessions.capture_of(subject.workload, subject.seed, ()).flops


def prepare(subject: Subject) -> Session:
    """Return the variant's session with the captured graph; raises `Unavailable` where there can be none."""
    return Session(subject)


def check(session: Session) -> None:
    """Compile, and compare the result with float64; raises `WrongResult`. A compiler's own error is kept."""
    session.compile()
    if session.runs:
        session.check()


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim about portability may name."""
    subject = session.subject
    workload, engine = subject.workload, subject.engine
    return {
        "device": "cpu",
        "operation": workload.operation,
        "class": CLASSES.get(workload.operation, "pointwise"),
        "passes": workload.passes,
        "dtype": workload.dtype,
        "target": engine.target if engine else "host",
        "engine": f"{engine.name} {engine.version}".strip() if engine else f"torch {torch.__version__}",
        "message": session.failure,
        "threads": str(torch.get_num_threads()),
        **({"model_code": huggingface.model_code(workload.hf_config)} if workload.hf_config else {}),
    }


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Yield whether it compiled, coverage, errors, seconds and bytes of the program, and lines of code."""
    subject, compiled = session.subject, session.compiled
    if subject.engine is None:
        yield from eager_readings(session)
    yield Reading("compiles", "1", float(compiled is not None), Origin.MEASURED)
    if session.failure:
        yield Note(f"compiler: {session.failure}")
    yield from coverage(session)
    yield from source_lines(subject)
    if compiled is None:
        return
    if session.runs:
        yield Reading("max_error", "1", session.errors.largest, Origin.MEASURED, "float64")
        yield Note(f"largest error: {session.errors.tensor}")
    if session.compile_s is not None:
        yield Reading("compile_time", "s", session.compile_s, Origin.MEASURED, compiled.compile_method)
    if compiled.size_B is not None:
        yield Reading("program_size", "B", compiled.size_B, Origin.MEASURED)
    yield from compiled.readings


def timed(session: Session) -> bool:
    """Return whether the variant is timed: what compiled for a device that is here."""
    engine = session.subject.engine
    return session.runs and (engine is None or engine.timed)


def sample(session: Session) -> Iterator[Reading | Note]:
    """Time one window of calls: seconds per call."""
    yield from session.stopwatch().window()


def close(session: Session) -> None:
    """Release the engine, and what all variants of the workload share."""
    session.release()
    sessions.clear()


SIDE = 1024  # rows and columns of the products that this CPU's rate is read from
PRODUCTS, BUDGET_S = 20, 1.0  # products at most, and seconds at most; the fastest counts
REASONS = 3  # reasons of graph breaks that are noted at most


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
        built = huggingface.build(workload.hf_config)
    parameters = sum(one.numel() for one in built.parameters())
    lacking = shortage(parameters * (STEP_B + REFERENCE_B + ENGINE_B), torch.device("cpu"))
    if lacking is None:
        return ""
    size = f"{parameters / 1e6:,.0f} M parameters"
    fewer = "try a smaller suite.hf_defaults.num_hidden_layers"
    return f"a captured step of {size} with its float64 reference {lacking}; {fewer}"
