"""Our own Triton kernels compiled for this CPU: the text that runs on GPUs, from packages alone.

Triton's IR becomes linalg by triton-ascend's tool and machine code by torch-mlir's MLIR and LLVM. Kernels
take the place of their operators in eager PyTorch, which computes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import triton
from torch import Tensor

from harness.instruments.triton_kernels import targets
from harness.instruments.triton_kernels.launch import compiled_on_cpu
from harness.records import HostInfo, Unavailable
from suites.portability import stablehlo
from suites.portability.capture.graph import Capture
from suites.portability.capture.problem import problem_of
from suites.portability.subject import Compiled, Engine, Subject
from suites.portability.triton_kernels import functions_of


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    return targets.unavailable() or stablehlo.unavailable()


def apply(subject: Subject) -> Subject:
    """Return the subject with our kernels, compiled; raises `Unavailable` where there is none."""
    if subject.workload.hf_config is not None:
        raise Unavailable("our kernels replace operators of this project's model, and this is transformers'")
    functions = functions_of(subject.workload)
    problem = partial(problem_of, subject.workload, subject.seed, functions)

    def compiled(capture: Capture) -> Compiled:
        step = problem().plain()

        def call() -> Sequence[Tensor]:
            with compiled_on_cpu():
                return step()

        return Compiled(call)

    engine = Engine("triton_cpu", compiled, version=str(triton.__version__), takes_graph=False)
    return replace(subject, engine=engine)
