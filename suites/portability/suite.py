"""The portability suite: one step captured from PyTorch, and what each compiler makes of it for each target.

The baseline is eager PyTorch. Every engine gets the same graph of core aten operators; its outputs and
gradients are compared with float64's before it is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from harness.records import Json, Note, Origin, Reading
from suites.portability import problem
from suites.portability import session as sessions
from suites.portability.eager_readings import eager_readings, source_lines
from suites.portability.eager_readings import too_large as too_large
from suites.portability.session import Session, coverage
from suites.portability.subject import Subject
from suites.portability.workload import Workload
from suites.training.models import huggingface


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
        "class": class_of(workload),
        "passes": workload.passes,
        "dtype": workload.dtype,
        "target": engine.target if engine else "host",
        "engine": f"{engine.name} {engine.version}".strip() if engine else f"torch {torch.__version__}",
        "message": session.failure,
        "threads": str(torch.get_num_threads()),
        **({"model_code": huggingface.model_code(workload.hf_config)} if workload.hf_config else {}),
    }


def class_of(workload: Workload) -> str:
    """Return the class of a workload: pointwise, attention, matmul, block or step."""
    classes = {"matmul": "matmul", "attention": "attention", "block": "block", "training_step": "step"}
    return classes.get(workload.operation, "pointwise")


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
