"""Capture a problem as a graph for sequences of any length."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)

from harness.instruments.torch_internals import errors_for_want_of_values
from harness.records import Unavailable
from suites.portability.capture.graph import DEPENDS, Capture, one_line
from suites.portability.capture.problem import problem_of
from suites.portability.capture.step_function import Problem
from suites.portability.workload import Workload


def other_length(workload: Workload, seed: int) -> Problem:
    """Return the problem of half the sequence length, which a graph for any length computes too."""
    if workload.seq_len < 2:
        raise Unavailable("a sequence of one token has no shorter one to compare with")
    return problem_of(replace(workload, seq_len=workload.seq_len // 2), seed)


def captured_for_any_length(workload: Workload, seed: int) -> Capture:
    """Return the graph whose sequence length is a symbol; raises `Unavailable` where the code fixes it.

    Which dimensions depend on the length is read off the inputs at two lengths. All others stay numbers, so
    that sizes that happen to be equal are not taken for one.
    """
    begin_s = time.perf_counter()
    problem, other = problem_of(workload, seed), other_length(workload, seed)
    pairs = zip(problem.inputs, other.inputs, strict=True)
    dims = tuple(tuple(_that_differ(*pair)) for pair in pairs)
    shapes = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    fakes = [
        mode.from_tensor(one, symbolic_context=StatelessSymbolicContext(dynamic_sizes=_sizes(one, of)))
        for one, of in zip(problem.inputs, dims, strict=True)
    ]
    symbols = [fakes[index].shape[dim] for index, of in enumerate(dims) for dim in of]
    table = {**core_aten_decompositions()}
    errors: tuple[type[Exception], ...] = (*errors_for_want_of_values(), GuardOnDataDependentSymNode)
    try:
        with mode:
            first = make_fx(problem.function, table, _allow_non_fake_inputs=True)(*fakes)
            pure = torch.func.functionalize(first, remove="mutations")
            graph = make_fx(pure, table, _allow_non_fake_inputs=True)(*fakes)
    except errors as error:
        raise Unavailable(f"{DEPENDS}: {one_line(error)}") from error
    graph.graph.eliminate_dead_code()
    graph.recompile()
    if not symbols or any(_fixed(shapes, one) for one in symbols):
        raise Unavailable("the model's code fixes the length of its sequences")
    return Capture(graph, problem.inputs, problem.output_names, time.perf_counter() - begin_s, dims)


def _that_differ(one: Tensor, other: Tensor) -> Sequence[int]:
    return [dim for dim, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if a != b]


def _sizes(tensor: Tensor, dims: Sequence[int]) -> list[DimDynamic]:
    return [DimDynamic.DYNAMIC if dim in dims else DimDynamic.STATIC for dim in range(tensor.dim())]


def _fixed(shapes: ShapeEnv, size: int | torch.SymInt) -> bool:
    """Return whether the trace has replaced a symbol by a number."""
    return isinstance(size, int) or bool(shapes.replace(size.node.expr).is_number)
