"""Capture a problem as a graph for sequences of any length.

Evaluate a captured graph in float64: the reference that every engine is compared with.

Every floating-point input, constant and type that the graph names becomes float64, so that only the order
of operations is left of its precision.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from harness.records import Unavailable
from suites.portability.graph import Capture, Problem, traced
from suites.portability.problem import problem_of
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
    dims = tuple(
        tuple(dim for dim in range(one.dim()) if one.shape[dim] != another.shape[dim])
        for one, another in zip(problem.inputs, other.inputs, strict=True)
    )
    shapes = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    fakes = [
        mode.from_tensor(one, symbolic_context=StatelessSymbolicContext(dynamic_sizes=_sizes(one, of)))
        for one, of in zip(problem.inputs, dims, strict=True)
    ]
    symbols = [fakes[index].shape[dim] for index, of in enumerate(dims) for dim in of]
    with mode:
        graph = traced(problem, fakes)
    if not symbols or any(_fixed(shapes, one) for one in symbols):
        raise Unavailable("the model's code fixes the length of its sequences")
    return Capture(graph, problem.inputs, problem.output_names, time.perf_counter() - begin_s, dims)


def _sizes(tensor: Tensor, dims: Sequence[int]) -> list[DimDynamic]:
    return [DimDynamic.DYNAMIC if dim in dims else DimDynamic.STATIC for dim in range(tensor.dim())]


def _fixed(shapes: ShapeEnv, size: int | torch.SymInt) -> bool:
    """Return whether the trace has replaced a symbol by a number."""
    return isinstance(size, int) or bool(shapes.replace(size.node.expr).is_number)


WIDE = torch.float64
FUSED_TYPES = ("_softmax", "_log_softmax")
"""Operators whose last argument asks for a result of another type, which float64 has no use for."""


class InFloat64(fx.Interpreter):
    """Runs a graph with every floating-point type replaced by float64."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator with wide types in the place of those that the graph names."""
        packet = getattr(target, "overloadpacket", None)
        if getattr(packet, "__name__", "") in FUSED_TYPES:
            args = (*args[:2], False)
        wide = [_wide(one) for one in args]
        return super().call_function(target, tuple(wide), {key: _wide(one) for key, one in kwargs.items()})

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return a constant, wide where it is floating-point."""
        return _wide(super().get_attr(target, args, dict(kwargs)))


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return WIDE if value.is_floating_point else value
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(WIDE)
    return value


def evaluated(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the graph's outputs in float64."""
    with torch.no_grad():
        result = InFloat64(graph).run(*(_wide(one) for one in inputs))
    return [_wide(one) for one in result]
