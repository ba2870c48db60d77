"""torch.compile's compiler Inductor (ASPLOS 2024, doi 10.1145/3620665.3640366) on the captured graph."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.instruments.torch_internals import compilations_from_cache
from suites.portability.capture.graph import Capture
from suites.portability.subject import Compiled, Engine, Subject


def apply(subject: Subject) -> Subject:
    """Return the subject compiled by Inductor."""
    return replace(subject, engine=Engine("inductor", compiled, version=torch.__version__))


def compiled(capture: Capture) -> Compiled:
    """Return the graph compiled for its shapes."""
    torch.compiler.reset()
    hits = compilations_from_cache()
    function = torch.compile(capture.graph, dynamic=False, fullgraph=True)

    def call() -> object:
        with torch.no_grad():
            return function(*capture.inputs)

    call()
    return Compiled(call, compile_method="cached" if compilations_from_cache() > hits else "cold")
