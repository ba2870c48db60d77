"""torch.compile's compiler Inductor (ASPLOS 2024, doi 10.1145/3620665.3640366) on the captured graph."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch._dynamo import mark_dynamic

from harness.instruments.torch_internals import compilations_from_cache
from suites.portability.capture.graph import Capture
from suites.portability.subject import Compiled, Engine, Subject

NO_POOL = ("TORCH_WARM_POOL", "0")
"""Variable and value without which torch starts processes for Triton's compiler, of which a CPU's code has no
use (torch/_inductor/async_compile.py, maybe_warm_pool). They import torch while other engines compile."""


def apply(subject: Subject) -> Subject:
    """Return the subject compiled by Inductor."""
    return replace(subject, engine=Engine("inductor", compiled, version=torch.__version__))


def compiled(capture: Capture) -> Compiled:
    """Return the graph compiled for its shapes, or for any size of those dimensions that it leaves open.

    Calling it with sizes for which it would compile again raises torch's error.
    """
    os.environ.setdefault(*NO_POOL)
    torch.compiler.reset()
    hits = compilations_from_cache()
    function = torch.compile(capture.graph, dynamic=None if capture.dynamic else False, fullgraph=True)
    inputs = _marked(capture.inputs, capture.dynamic)

    def call() -> object:
        with torch.no_grad():
            return function(*inputs)

    def call_with(others: Sequence[Tensor]) -> object:
        with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
            return function(*_marked(others, capture.dynamic))

    call()
    method = "cached" if compilations_from_cache() > hits else "cold"
    return Compiled(call, compile_method=method, call_with=call_with)


def _marked(inputs: Sequence[Tensor], dynamic: Sequence[Sequence[int]]) -> Sequence[Tensor]:
    """Return the inputs, those with open sizes as copies that are marked so."""
    marked = list(inputs)
    for index, dims in enumerate(dynamic):
        if dims:
            marked[index] = inputs[index].clone()
            mark_dynamic(marked[index], list(dims))
    return marked
