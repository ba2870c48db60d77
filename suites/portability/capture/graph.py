"""Capture a problem as one graph of core aten operators, with its operators and their FLOP.

make_fx traces forward, backward and update on fake tensors; a second trace removes writes in place. What
depends on the values of a tensor cannot be captured and is refused.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils.flop_counter import flop_registry

from harness.instruments.kept_code import kept_code
from harness.instruments.torch_internals import errors_for_want_of_values
from harness.records import Unavailable
from suites.portability.capture import rewrites
from suites.portability.capture.step_function import Problem

DEPENDS = (
    "what is computed depends on the values of a tensor, so no graph of fixed operations can be captured"
)


class Capture:
    """A captured graph. `inputs`: tensors in the order of its placeholders; `capture_s`: of capturing it.

    `dynamic`: for each input its dimensions whose size the graph leaves open; empty where all are fixed.
    `lent_s`: seconds that engines did not spend on `exported` and `stablehlo`, since another engine, or an
    earlier process of the sweep, had made them.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        inputs: Sequence[Tensor],
        output_names: Sequence[str],
        capture_s: float = 0.0,
        dynamic: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self.graph = graph
        self.inputs = tuple(inputs)
        self.output_names = tuple(output_names)
        self.capture_s = capture_s
        self.dynamic = dynamic
        self.lent_s = 0.0
        self._made: dict[str, tuple[Any, float]] = {}

    @property
    def exported(self) -> torch.export.ExportedProgram:
        """Return the graph as torch.export's program, which engines import."""
        program: torch.export.ExportedProgram = self._once("exported", self._exported)
        return program

    @property
    def stablehlo(self) -> str:
        """Return the graph in StableHLO's text by torch-mlir; raises what that raises, `Unavailable` too."""
        text: str = self._once("stablehlo", self._stablehlo)
        return text

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned when it was first called, or raise what it raised."""
        lent_s = self.lent_s
        if name not in self._made:
            begin_s = time.perf_counter()
            try:
                made = make()
            except MemoryError:
                raise
            except Exception as error:  # torch.export and torch-mlir raise many kinds
                made = error
            self._made[name] = made, time.perf_counter() - begin_s + self.lent_s - lent_s
        else:
            self.lent_s += self._made[name][1]
        if isinstance(self._made[name][0], Exception):
            raise self._made[name][0]
        return self._made[name][0]

    def _exported(self) -> torch.export.ExportedProgram:
        open_sizes = [dict.fromkeys(dims, torch.export.Dim.AUTO) for dims in self.dynamic]
        shapes = {"arguments": tuple(open_sizes)} if self.dynamic else None
        module = GraphAsModule(copy.deepcopy(self.graph))
        return torch.export.export(module, self.inputs, dynamic_shapes=shapes)

    def _stablehlo(self) -> str:
        from suites.portability.stablehlo import text_of

        begin_s, lent_s = time.perf_counter(), self.lent_s

        def made() -> bytes:
            text = text_of(self.exported)
            return f"{time.perf_counter() - begin_s + self.lent_s - lent_s}\n{text}".encode()

        kept = kept_code(made, "stablehlo", self.key)
        took_s, _, text = kept.code.decode().partition("\n")
        if kept.method == "cached":
            self.lent_s += float(took_s)
        return text

    @cached_property
    def key(self) -> str:
        """Return what the graph computes as text: operators, shapes, types and constants, not its inputs."""
        nodes = list(self.graph.graph.nodes)
        lines = [f"{one.format_node()} {one.meta.get('val')}" for one in nodes]
        values = [getattr(self.graph, str(one.target)) for one in nodes if one.op == "get_attr"]
        constants = [one.tolist() if isinstance(one, Tensor) else str(one) for one in values]
        return "\n".join([*lines, str(constants), str(self.dynamic)])

    @property
    def nodes(self) -> list[fx.Node]:
        """Return the nodes that call an operator."""
        return [node for node in self.graph.graph.nodes if is_operator(node)]

    @property
    def output_dtypes(self) -> list[torch.dtype]:
        """Return the type of each output."""
        (output,) = (node for node in self.graph.graph.nodes if node.op == "output")
        return [one.meta["val"].dtype for one in output.args[0]]

    @property
    def flops(self) -> float:
        """Return the FLOP of the graph's matrix products."""
        return sum(flops_of(node) for node in self.nodes)


class GraphAsModule(nn.Module):
    """A graph as the submodule of a module, as torch.export takes it."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *arguments: Tensor) -> Any:
        """Call the graph."""
        return self.graph(*arguments)


def captured(problem: Problem, rewritten: Sequence[str] = ()) -> Capture:
    """Return the problem's graph; raises `Unavailable` where it depends on the values of a tensor."""
    begin_s = time.perf_counter()
    table = {**core_aten_decompositions(), **rewrites.decompositions(rewritten)}
    errors: tuple[type[Exception], ...] = (*errors_for_want_of_values(), GuardOnDataDependentSymNode)
    try:
        first = make_fx(problem.function, table, tracing_mode="fake", _allow_non_fake_inputs=True)(
            *problem.inputs
        )
        pure = torch.func.functionalize(first, remove="mutations")
        graph = make_fx(pure, table, tracing_mode="fake", _allow_non_fake_inputs=True)(*problem.inputs)
    except errors as error:
        raise Unavailable(f"{DEPENDS}: {one_line(error)}") from error
    graph.graph.eliminate_dead_code()
    graph.recompile()
    if (node := _first_of_unknown_size(graph)) is not None:
        raise Unavailable(f"{DEPENDS}: {node.target} has a result of unknown size")
    return Capture(graph, problem.inputs, problem.output_names, time.perf_counter() - begin_s)


def _first_of_unknown_size(graph: fx.GraphModule) -> fx.Node | None:
    """Return the first node whose result is a number or has a size that only its values determine."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, Tensor) else (value,)
        if any(isinstance(one, torch.SymInt | torch.SymFloat | torch.SymBool) for one in sizes):
            return node  # type: ignore[no-any-return]
    return None


def one_line(error: BaseException | str, length: int = 160) -> str:
    """Return a message's first line that says something, shortened."""
    text = str(error) or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "")[:length]


def is_operator(node: fx.Node) -> bool:
    """Return whether a node computes: not an input, an output or the choice of one of several results."""
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def flops_of(node: fx.Node) -> float:
    """Return a matrix product's FLOP, by torch's own formulas (torch.utils.flop_counter); 0 of others."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet not in flop_registry:
        return 0.0
    arguments = fx.map_arg(node.args, lambda one: one.meta["val"])
    named = fx.map_arg(node.kwargs, lambda one: one.meta["val"])
    return float(flop_registry[packet](*arguments, **named, out_val=node.meta["val"]))


def name_of(node: fx.Node) -> str:
    """Return an operator's name as in torch: `aten.mm.default`."""
    return str(node.target)
