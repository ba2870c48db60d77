"""Capture a problem as one graph of core aten operators, with its operators and their FLOP.

make_fx traces forward, backward and update on fake tensors; a second trace removes writes in place. What
depends on the values of a tensor cannot be captured and is refused.

The update is AdamW's (arXiv 1711.05101). The step that is captured is the tenth: its first moments are zero,
so that a tenth of each gradient can be read from the new ones, and its second moments are small positive
numbers.
"""

from __future__ import annotations

import ast
import copy
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils.flop_counter import flop_registry

from harness.instruments.process import kept_code
from harness.instruments.torch_internals import errors_for_want_of_values
from harness.records import Unavailable
from suites.training.optimizers import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY

PureFunction = Callable[..., tuple[Tensor, ...]]


class Forward(NamedTuple):
    """The forward pass alone: `function` maps the inputs to one; the first `names` of them get gradients."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    names: tuple[str, ...]


class Problem(NamedTuple):
    """A pure function, its inputs, and the names of its outputs.

    Outputs are named by their kind and a name: `output`, `gradient head.weight`, `parameter ...`. The first
    `differentiated` inputs are those that get gradients. `plain()` returns the call that a user of eager
    PyTorch would make, which may update its own copies in place; it returns the same outputs.
    """

    function: PureFunction
    inputs: tuple[Tensor, ...]
    output_names: tuple[str, ...]
    differentiated: int
    plain: Callable[[], Callable[[], Sequence[Tensor]]]
    forward: Forward


def embedding_backward_by_one_hot(
    gradient: Tensor, indices: Tensor, rows: int, padding_index: int, scale_by_frequency: bool
) -> Tensor:
    """Return the gradient of an embedding's table as a product, in place of a scatter that adds."""
    gradient_ND, indices_N = gradient.flatten(0, -2), indices.flatten()
    chosen_VN = torch.arange(rows, device=indices.device)[:, None] == indices_N
    return chosen_VN.to(gradient.dtype) @ gradient_ND


REWRITES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "embedding_backward": (torch.ops.aten.embedding_dense_backward.default, embedding_backward_by_one_hot),
}
"""By name: the operator, and what takes its place while the step is captured."""


def lines_of(code: Any) -> int:
    """Return the lines of a function's or module's code, without blank lines, comments and docstrings."""
    return len(code_lines(inspect.getsource(code)))


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines of `source` that hold code; a docstring's are left out."""
    tree = ast.parse(inspect.cleandoc(source) if source[:1].isspace() else source)
    lines: set[int] = set()
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.alias):
            lines |= {node.lineno, node.end_lineno or node.lineno}
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines - docstrings


DEPENDS = (
    "what is computed depends on the values of a tensor, so no graph of fixed operations can be captured"
)


@dataclass(eq=False)
class Capture:
    """A captured graph. `inputs`: tensors in the order of its placeholders; `capture_s`: of capturing it.

    `dynamic`: for each input its dimensions whose size the graph leaves open; empty where all are fixed.
    `lent_s`: seconds that engines did not spend on `exported` and `stablehlo`, since another engine, or an
    earlier process of the sweep, had made them.
    """

    graph: fx.GraphModule
    inputs: tuple[Tensor, ...]
    output_names: tuple[str, ...]
    capture_s: float = 0.0
    dynamic: tuple[tuple[int, ...], ...] = ()
    lent_s: float = field(default=0.0, init=False)
    _made: dict[str, tuple[Any, float]] = field(default_factory=dict, init=False)

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
        from suites.portability.packages import text_of

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
        """Return the nodes that compute: no input, output or choice of one of several results."""
        return [node for node in self.graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]

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


def traced(
    problem: Problem, inputs: Sequence[Any], rewritten: Sequence[str] = (), **how: Any
) -> fx.GraphModule:
    """Return the problem's graph without writes in place, by two traces; `how`: as make_fx takes it.

    Raises `Unavailable` where it depends on the values of a tensor.
    """
    table = {**core_aten_decompositions(), **dict(REWRITES[name] for name in rewritten)}
    errors: tuple[type[Exception], ...] = (*errors_for_want_of_values(), GuardOnDataDependentSymNode)
    try:
        first = make_fx(problem.function, table, _allow_non_fake_inputs=True, **how)(*inputs)
        pure = torch.func.functionalize(first, remove="mutations")
        graph = make_fx(pure, table, _allow_non_fake_inputs=True, **how)(*inputs)
    except errors as error:
        raise Unavailable(f"{DEPENDS}: {one_line(error)}") from error
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def captured(problem: Problem, rewritten: Sequence[str] = ()) -> Capture:
    """Return the problem's graph; raises `Unavailable` where it depends on the values of a tensor."""
    begin_s = time.perf_counter()
    graph = traced(problem, problem.inputs, rewritten, tracing_mode="fake")
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


def flops_of(node: fx.Node) -> float:
    """Return a matrix product's FLOP, by torch's own formulas (torch.utils.flop_counter); 0 of others."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet not in flop_registry:
        return 0.0
    arguments = fx.map_arg(node.args, lambda one: one.meta["val"])
    named = fx.map_arg(node.kwargs, lambda one: one.meta["val"])
    return float(flop_registry[packet](*arguments, **named, out_val=node.meta["val"]))


def single(node: fx.Node) -> tuple[str, Capture]:
    """Return the operator alone, with inputs of the shapes that it has in the graph, and a key of its kind.

    Nodes with the same operator and the same types have one key. Index inputs are zeros.
    """
    graph = fx.Graph()
    inputs: list[Tensor] = []

    def placed(argument: fx.Node) -> fx.Node:
        value = argument.meta["val"]
        place = graph.placeholder(f"input_{len(inputs)}")
        place.meta["val"] = value
        fill = 0.5 if value.dtype.is_floating_point else 0
        inputs.append(torch.full(value.shape, fill, dtype=value.dtype))
        return place

    args = fx.map_arg(node.args, placed)
    kwargs = fx.map_arg(node.kwargs, placed)
    target: Any = node.target
    call = graph.call_function(target, args, kwargs)
    call.meta["val"] = node.meta["val"]
    output = graph.output((call,))
    output.meta = {}
    kinds = ",".join(str(one.dtype) for one in inputs)
    module = fx.GraphModule(torch.nn.Module(), graph)
    return f"{node.target}({kinds})", Capture(module, tuple(inputs), ("output",))


STEP = 10  # number of the update, counted from 1

SECOND_MOMENT = 1e-6
"""Scale of the second moments before the update: that of a small model's squared gradients."""


def updated(
    parameter: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return parameter and moments after the update, as torch/optim/adam.py computes them."""
    exp_avg = exp_avg * BETAS[0] + gradient * (1 - BETAS[0])
    exp_avg_sq = exp_avg_sq * BETAS[1] + gradient * gradient * (1 - BETAS[1])
    denominator = exp_avg_sq.sqrt() / (1 - BETAS[1] ** STEP) ** 0.5 + EPSILON
    size = LEARNING_RATE / (1 - BETAS[0] ** STEP)
    return (
        parameter * (1 - LEARNING_RATE * WEIGHT_DECAY) - size * (exp_avg / denominator),
        exp_avg,
        exp_avg_sq,
    )


def with_update(differentiable: Problem, forward: Forward, generator: torch.Generator) -> Problem:
    """Return the step with its update: its outputs are the loss, then each parameter and its two moments."""
    count = differentiable.differentiated
    parameters = forward.inputs[:count]
    exp_avgs = tuple(torch.zeros_like(one) for one in parameters)
    exp_avg_sqs = tuple(
        ((torch.rand(one.shape, generator=generator) + 0.5) * SECOND_MOMENT).to(one.dtype)
        for one in parameters
    )

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        moments = arguments[len(arguments) - 2 * count :]
        loss, *gradients = differentiable.function(*arguments[: len(arguments) - 2 * count])
        groups = zip(arguments[:count], gradients, moments[:count], moments[count:], strict=True)
        new = [updated(*one) for one in groups]
        return (loss, *(tensor for group in zip(*new, strict=True) for tensor in group))

    kinds = ("parameter", "first_moment", "second_moment")
    names = ("output", *(f"{kind} {name}" for kind in kinds for name in forward.names))
    inputs = (*differentiable.inputs, *exp_avgs, *exp_avg_sqs)

    def plain() -> Callable[[], Sequence[Tensor]]:
        return plain_step(forward, count, exp_avgs, exp_avg_sqs)

    return Problem(function, inputs, names, count, plain, forward)


def plain_step(
    forward: Forward, count: int, exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor]
) -> Callable[[], Sequence[Tensor]]:
    """Return a call that makes one step of torch.optim.AdamW in place, on copies of its own."""
    parameters = [one.clone().requires_grad_() for one in forward.inputs[:count]]
    optimizer = torch.optim.AdamW(
        parameters, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY
    )
    states = []
    for parameter, exp_avg, exp_avg_sq in zip(parameters, exp_avgs, exp_avg_sqs, strict=True):
        step = torch.tensor(float(STEP - 1))
        states.append({"step": step, "exp_avg": exp_avg.clone(), "exp_avg_sq": exp_avg_sq.clone()})
        optimizer.state[parameter] = states[-1]

    def call() -> Sequence[Tensor]:
        loss = forward.function(*parameters, *forward.inputs[count:])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        moments = [one[key] for key in ("exp_avg", "exp_avg_sq") for one in states]
        return [loss.detach(), *(one.detach() for one in parameters), *moments]

    return call
