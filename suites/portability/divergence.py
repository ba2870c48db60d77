"""Lines of code that a variant needs of its own, and those that all share."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from harness.records import Origin, Reading
from suites.portability.capture import graph, problem
from suites.portability.subject import Subject
from suites.portability.triton_kernels import modules_of
from suites.training.models import model


def source_lines(subject: Subject) -> Iterator[Reading]:
    """Yield the lines of the step that all engines share, those of this one alone, and their divergence.

    Our Triton kernels are lines of their own, the same for every target.

    Code divergence of two platforms is the Jaccard distance of their lines, 1 - shared / all of both (Harrell
    and Kitson, P3HPC 2018, doi 10.1109/P3HPC.2018.00006); here one of the two is eager PyTorch.
    """
    shared = sum(len(graph.code_lines(inspect.getsource(one))) for one in (model, problem, graph))
    engine = subject.engine
    names = engine.rewritten if engine is not None else ()
    own = sum(graph.lines_of(graph.REWRITES[name][1]) for name in names)
    if engine is not None and not engine.takes_graph:
        kernels = modules_of(subject.workload)
        own += sum(len(graph.code_lines(inspect.getsource(one))) for one in kernels)
    yield Reading("source_lines", "1", shared, Origin.CALCULATED, "shared")
    yield Reading("source_lines", "1", own, Origin.CALCULATED, "own")
    yield Reading("code_divergence", "1", own / (shared + own), Origin.CALCULATED)
