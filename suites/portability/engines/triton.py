"""Our own Triton kernels (suites/training/triton_kernels) in the place of the operators that they cover.

On a CPU Triton has no compiler and interprets them: they are checked at a small shape and not timed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import triton

from harness.records import Unavailable
from suites.portability.capture.graph import Capture
from suites.portability.capture.problem import problem_of
from suites.portability.subject import Compiled, Engine, Subject
from suites.portability.triton_kernels import functions_of
from suites.portability.workload import Workload

SMALL = {"micro_batch_size": 1, "seq_len": 16}
SMALL_WIDTHS = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
SMALL_MODEL = {**SMALL_WIDTHS, "intermediate_size": 96, "vocab_size": 128}
"""The shape that is interpreted: heads of 32, the least that our attention has."""


def apply(subject: Subject) -> Subject:
    """Return the subject with our kernels at a small shape; raises `Unavailable` where there is none."""
    workload = small(subject.workload)
    functions = functions_of(workload)
    problem = partial(problem_of, workload, subject.seed, functions)

    def compiled(capture: Capture) -> Compiled:
        return Compiled(problem().plain())

    version = str(triton.__version__)
    engine = Engine("triton", compiled, "interpreter", version=version, takes_graph=False, timed=False)
    return replace(subject, workload=workload, engine=engine)


def small(workload: Workload) -> Workload:
    """Return the workload at the shape that is interpreted; raises `Unavailable` for transformers' models."""
    if workload.hf_config is not None:
        raise Unavailable("our kernels replace operators of this project's model, and this is transformers'")
    sizes = {**SMALL, **SMALL_MODEL, "num_hidden_layers": 1}
    unused = {
        "softmax": ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"),
        "rms_norm": ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"),
        "swiglu": ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"),
        "attention": ("intermediate_size", "vocab_size"),
        "cross_entropy": ("num_attention_heads", "num_key_value_heads", "intermediate_size"),
        "block": ("vocab_size",),
    }.get(workload.operation, ())
    return replace(workload, **{name: size for name, size in sizes.items() if name not in unused})  # type: ignore[arg-type]
