"""One variant in a process: the captured graph, what the engine made of it, and how far off it is.

An error is |ours - float64| over the largest |float64| of the same tensor; of parameters after an update,
over the largest change. What a rounding of the largest gradient or parameter explains is no error.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from harness.instruments.process import kept_code
from harness.instruments.timing.stopwatch import Stopwatch, stopwatch
from harness.records import Note, Origin, Reading, Unavailable, WrongResult
from suites.portability.graph import Capture, Problem, captured, flops_of, one_line, single, traced
from suites.portability.problem import problem_of
from suites.portability.subject import Compiled, Engine, Subject
from suites.portability.workload import Workload


class Session:
    """The state of one variant.

    `failure`: the compiler's message in one line, where it has no code for the graph. `compile_s`: seconds
    from the captured graph to the first result, less those of a second call; what engines share counts for
    each.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.problem = problem(subject.workload, subject.seed)
        engine = subject.engine
        self.any_length = engine is not None and engine.any_length
        rewritten = engine.rewritten if engine is not None else ()
        given = (subject.workload, subject.seed)
        self.capture = captured_for_any_length(*given) if self.any_length else capture_of(*given, rewritten)
        self.compiled: Compiled | None = None
        self.failure = ""
        self.compile_s: float | None = None
        self.errors = LargestError(0.0, "")
        self.watch: Stopwatch | None = None

    def compile(self) -> None:
        """Let the engine compile the graph; its own errors become `failure`."""
        engine = self.subject.engine
        if engine is None:
            self.compiled = Compiled(self.problem.plain())
            return
        begin_s, lent_s = time.perf_counter(), self.capture.lent_s
        try:
            self.compiled = engine.compile(self.capture)
        except (Unavailable, MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:  # each compiler raises its own kinds
            self.failure = message_of(error)
        self.compile_s = time.perf_counter() - begin_s + self.capture.lent_s - lent_s

    @property
    def runs(self) -> bool:
        """Return whether there is something to run here."""
        return self.compiled is not None and self.compiled.call is not None

    def first_results(self) -> list[list[Tensor]]:
        """Return the tensors of the first call and, where it changes none of its inputs, of the second.

        The first call's time counts as compiling, but for that of the second.
        """
        assert self.compiled is not None
        assert self.compiled.call is not None
        begin_s = time.perf_counter()
        result = self.compiled.call()
        first_s = time.perf_counter() - begin_s
        tensors = [self._tensors(result)]
        begin_s = time.perf_counter()
        result = self.compiled.call()
        second_s = time.perf_counter() - begin_s
        if self.compile_s is not None:
            self.compile_s += max(first_s - second_s, 0.0)
        engine = self.subject.engine
        if self.subject.workload.passes == "update" and (engine is None or not engine.takes_graph):
            return tensors  # an eager step continues from the last one's parameters
        return [*tensors, self._tensors(result)]

    def _tensors(self, result: Any) -> list[Tensor]:
        assert self.compiled is not None
        return [one.detach().clone() for one in self.compiled.tensors(result)]

    def check(self) -> None:
        """Compare with float64, two calls where each computes the same, since a data race is right at times.

        Raises `WrongResult`.
        """
        workload, seed = self.subject.workload, self.subject.seed
        expected = reference(workload, seed)
        before = parameters_before(self.problem)
        self.errors = max(compare(self.capture, before, expected, one) for one in self.first_results())
        if self.any_length:
            self.errors = max(self.errors, self.errors_at_other_length())

    def errors_at_other_length(self) -> LargestError:
        """Compare what the same code computes for shorter sequences; raises `WrongResult`."""
        assert self.compiled is not None
        assert self.compiled.call_with is not None
        other = other_length(self.subject.workload, self.subject.seed)
        capture = captured(other)
        ours = self._tensors(self.compiled.call_with(other.inputs))
        return compare(capture, parameters_before(other), evaluated(capture.graph, capture.inputs), ours)

    def stopwatch(self) -> Stopwatch:
        """Return the stopwatch of the call."""
        if self.watch is None:
            assert self.compiled is not None
            assert self.compiled.call is not None
            self.watch = stopwatch(self.compiled.call, torch.device("cpu"))
        return self.watch

    def release(self) -> None:
        """Let the engine and its tensors go."""
        self.compiled = self.watch = None


def message_of(error: Exception) -> str:
    """Return a compiler's message in one line: the first that names an error, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"(^|\s)error: ", line)]
    return one_line(named[0] if named else f"{type(error).__name__}: {one_line(error)}", 240)


def parameters_before(given: Problem) -> dict[str, Tensor]:
    """Return the parameters before an update, by the name of their output."""
    parameters = [name for name in given.output_names if name.startswith("parameter ")]
    return dict(zip(parameters, given.inputs, strict=False))


@lru_cache(maxsize=1)
def problem(workload: Workload, seed: int) -> Problem:
    """Return the problem, the same tensors for every variant of a workload."""
    return problem_of(workload, seed)


@lru_cache(maxsize=2)
def capture_of(workload: Workload, seed: int, rewritten: tuple[str, ...]) -> Capture:
    """Return the captured graph, once for all engines that share it."""
    return captured(problem(workload, seed), rewritten)


@lru_cache(maxsize=1)
def reference(workload: Workload, seed: int) -> list[Any]:
    """Return the outputs in float64, of the graph that nothing is rewritten in."""
    capture = capture_of(workload, seed, ())
    return evaluated(capture.graph, capture.inputs)


def clear() -> None:
    """Forget inputs, graphs and references."""
    for cached in (problem, capture_of, reference):
        cached.cache_clear()


BUDGET_S = 30.0
"""Seconds after which no further operator is tried, since an engine may take seconds for each."""


def coverage(session: Session) -> Iterator[Reading | Note]:
    """Yield the shares of the graph's operators, and of its products' FLOP, that the engine has code for.

    Where the full graph did not compile, every kind of operator is compiled alone, once for all types.
    """
    engine, nodes = session.subject.engine, session.capture.nodes
    if engine is not None and not engine.takes_graph:
        return
    if session.any_length and session.compiled is None:
        return  # operators of open sizes are not tried alone
    if engine is None or session.compiled is not None:
        yield Reading("coverage", "1", 1.0, Origin.MEASURED, "operators")
        yield Reading("coverage", "1", 1.0, Origin.MEASURED, "flops")
        return
    alone = operators_alone(session.capture)
    kinds = dict(alone.values())
    found = kept_code(
        lambda: _tried(engine, kinds), "coverage", engine.name, engine.target, session.capture.key
    )
    done, faults = json.loads(found.code)
    if done < len(kinds):
        yield Note(
            f"coverage: not known; {done} of {len(kinds)} kinds of operators were tried in {BUDGET_S:.0f} s"
        )
        return
    covered = [node for node, (key, _) in alone.items() if key not in faults]
    flops = sum(map(flops_of, nodes))
    yield Reading("coverage", "1", len(covered) / len(nodes), Origin.MEASURED, "operators")
    if flops:
        yield Reading("coverage", "1", sum(map(flops_of, covered)) / flops, Origin.MEASURED, "flops")
    names = sorted({str(node.target) for node, (key, _) in alone.items() if key in faults})
    yield Note(f"operators without code: {', '.join(names) or 'none alone; the graph fails as a whole'}")


def _tried(engine: Engine, kinds: Mapping[str, Capture]) -> bytes:
    """Return as JSON how many kinds of operators were tried, and the keys of those without code."""
    faults: list[str] = []
    begin_s = time.monotonic()
    for done, (key, capture) in enumerate(kinds.items()):
        if time.monotonic() - begin_s > BUDGET_S:
            return json.dumps([done, faults]).encode()
        try:
            engine.compile(capture)
        except Exception:  # each compiler raises its own kinds
            faults.append(key)
    return json.dumps([len(kinds), faults]).encode()


@lru_cache(maxsize=2)
def operators_alone(capture: Capture) -> Mapping[fx.Node, tuple[str, Capture]]:
    """Return each operator as a graph of its own with a key of its kind, for all engines of one graph."""
    return {node: single(node) for node in capture.nodes}


TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""fp32: sums of some thousands of products at 2^-24 each; TF32 and bf16 are 10 and 80 times as far off. bf16:
several roundings of 2^-9 each, one after another through a model's layers."""

ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}
"""Half the distance of neighbouring numbers next to 1."""

ROUNDINGS_OF_UPDATE = 4
"""Roundings of a parameter's own size in AdamW: weight decay, its difference, and their order."""


class LargestError(NamedTuple):
    """The largest error of all tensors, and the name of the tensor that has it."""

    largest: float
    tensor: str


def compare(
    capture: Capture, before: dict[str, Tensor], expected: Sequence[Tensor], ours: Sequence[Tensor]
) -> LargestError:
    """Return the largest error; raises `WrongResult`, one line, for another number, type, shape or value.

    `before`: parameters before the update by the name of their output.
    """
    names = capture.output_names
    (output,) = (node for node in capture.graph.graph.nodes if node.op == "output")
    dtypes = [one.meta["val"].dtype for one in output.args[0]]
    if len(ours) != len(expected):
        raise WrongResult(f"{len(ours)} outputs, not {len(expected)}")
    precision = next(one.dtype for one in capture.inputs if one.is_floating_point())
    tolerance = TOLERANCES[precision]
    worst = LargestError(0.0, "")
    for name, dtype, one, other in zip(names, dtypes, ours, expected, strict=True):
        if one.dtype != dtype:
            raise WrongResult(
                f"{name} is {_plain(one.dtype)}, not {_plain(dtype)}: computed in another precision"
            )
        if one.shape != other.shape:
            raise WrongResult(f"{name} has shape {tuple(one.shape)}, not {tuple(other.shape)}")
        change = before.get(name)
        scale = _scale(name, other, change, names, expected, ROUNDING[precision] / tolerance)
        off = (one.double() - other).abs().nan_to_num(nan=torch.inf)
        error = float(off.max()) / scale if one.numel() else 0.0
        if not error <= tolerance:
            of = "value" if change is None else "change"
            raise WrongResult(
                f"{name} is off by {error:.1e} of its largest {of}, allowed for {_plain(precision)}: "
                f"{tolerance:.0e}"
            )
        worst = max(worst, LargestError(error, name))
    return worst


def _scale(
    name: str,
    expected: Tensor,
    before: Tensor | None,
    names: Sequence[str],
    every: Sequence[Tensor],
    rounding: float,
) -> float:
    """Return what the largest difference of a tensor is divided by."""
    if before is not None:
        change = float((expected - before.double()).abs().max())
        return max(change, ROUNDINGS_OF_UPDATE * rounding * float(before.abs().max())) or 1.0
    kinds = [one.split(" ")[0] for one in (name, *names)]
    alike = [float(one.abs().max()) for kind, one in zip(kinds[1:], every, strict=True) if kind == kinds[0]]
    return max(float(expected.abs().max()), rounding * max(alike)) or 1.0


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def other_length(workload: Workload, seed: int) -> Problem:
    """Return the problem of half the sequence length, which a graph for any length computes too."""
    if workload.seq_len < 2:
        raise Unavailable("a sequence of one token has no shorter one to compare with")
    return problem_of(replace(workload, seq_len=workload.seq_len // 2), seed)


def captured_for_any_length(workload: Workload, seed: int) -> Capture:
    """Return the graph whose sequence length is a symbol; raises `Unavailable` where the code fixes it.

    Which dimensions depend on the length is read off the inputs at two lengths; all others stay numbers.
    """
    begin_s = time.perf_counter()
    own, other = problem_of(workload, seed), other_length(workload, seed)
    dims = tuple(
        tuple(dim for dim in range(one.dim()) if one.shape[dim] != another.shape[dim])
        for one, another in zip(own.inputs, other.inputs, strict=True)
    )
    shapes = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    fakes = []
    for one, of in zip(own.inputs, dims, strict=True):
        sizes = [DimDynamic.DYNAMIC if dim in of else DimDynamic.STATIC for dim in range(one.dim())]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        fakes.append(mode.from_tensor(one, symbolic_context=context))
    symbols = [fakes[index].shape[dim] for index, of in enumerate(dims) for dim in of]
    with mode:
        graph = traced(own, fakes)
    # A symbol that the trace has replaced by a number is an int, or has a number as its expression.
    numbers = [isinstance(one, int) or shapes.replace(one.node.expr).is_number for one in symbols]
    if not symbols or any(numbers):
        raise Unavailable("the model's code fixes the length of its sequences")
    return Capture(graph, own.inputs, own.output_names, time.perf_counter() - begin_s, dims)


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
