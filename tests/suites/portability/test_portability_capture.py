"""What is captured is what PyTorch computes, and an engine that computes something else is caught.

No engine is needed: faulty ones are made up here.
"""

import dataclasses
import time

import pytest
import torch

from harness.instruments.process import COMPILED_FOLDER
from harness.records import Note, Reading, Unavailable, WrongResult
from suites.portability import graph as rewrites
from suites.portability import packages
from suites.portability import session as sessions
from suites.portability.graph import Forward, Problem, captured, flops_of
from suites.portability.optimizations import triton
from suites.portability.problem import problem_of, with_backward
from suites.portability.session import Session, clear, compare, evaluated, parameters_before
from suites.portability.subject import Compiled, Engine
from suites.portability.suite import build, check, conditions, prepare, read_once, source_lines, timed
from suites.portability.workload import Workload
from suites.training.optimizers import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY

ROWS = {"seq_len": 5, "hidden_size": 8}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
SIZES = {
    "softmax": ROWS,
    "rms_norm": ROWS,
    "swiglu": ROWS,
    "matmul": {**ROWS, "intermediate_size": 3},
    "attention": {**ROWS, "num_attention_heads": 2, "num_key_value_heads": 2},
    "cross_entropy": {**ROWS, "vocab_size": 7},
    "block": {**ROWS, **HEADS, "micro_batch_size": 2, "intermediate_size": 12},
}
STEP = {
    "operation": "training_step", "passes": "update", "micro_batch_size": 2, "seq_len": 6, "hidden_size": 16,
    **HEADS, "intermediate_size": 24, "vocab_size": 32, "num_hidden_layers": 1,
}  # fmt: skip
WORKLOADS = [{"operation": name, **sizes} for name, sizes in SIZES.items()] + [STEP]
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 16, "intermediate_size": 16, **HEADS, "num_hidden_layers": 1,
    "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 32, "max_position_embeddings": 16,
}  # fmt: skip


def wide(tensors):
    return [one.double() if one.is_floating_point() else one for one in tensors]


@pytest.mark.parametrize("fields", WORKLOADS, ids=lambda one: one["operation"])
def test_the_graph_in_float64_is_what_pytorch_computes_in_float64(fields):
    problem, graph = sessions.problem(Workload(**fields), 3), sessions.capture_of(Workload(**fields), 3, ())
    # Inputs, such as the tables of rotary positions, are rounded to fp32 in both.
    expected = problem.function(*wide(problem.inputs))
    ours = evaluated(graph.graph, graph.inputs)
    for name, one, other in zip(problem.output_names, ours, expected, strict=True):
        assert float((one - other).abs().max() / other.abs().max()) < 1e-8, name  # fp32 rounds at 6e-8


def test_the_update_is_that_of_torchs_adamw():
    problem = problem_of(Workload(**STEP), 3)
    results = dict(zip(problem.output_names, problem.function(*problem.inputs), strict=True))
    loss = problem.forward.function
    count = problem.differentiated
    parameters = [one.double().requires_grad_() for one in problem.inputs[:count]]
    rest = wide(problem.forward.inputs[count:])
    gradients = torch.autograd.grad(loss(*parameters, *rest), parameters)
    for name, parameter, gradient in zip(problem.forward.names, parameters, gradients, strict=True):
        first = results[f"first_moment {name}"].double()
        torch.testing.assert_close(first, (1 - BETAS[0]) * gradient, rtol=1e-4, atol=1e-7)
        second = results[f"second_moment {name}"].double()
        size = LEARNING_RATE / (1 - BETAS[0] ** 10) / ((second / (1 - BETAS[1] ** 10)).sqrt() + EPSILON)
        expected = parameter.detach() * (1 - LEARNING_RATE * WEIGHT_DECAY) - size * first
        torch.testing.assert_close(results[f"parameter {name}"].double(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("fields", [STEP, {**STEP, "micro_batch_size": 1, "hf_config": MIXTRAL}])
def test_plain_pytorch_passes_the_check_and_repeats_the_step_in_place(fields):
    """The suite's own model, and one of transformers."""
    session = Session(build(fields, 3))
    check(session)
    assert 0 <= session.errors.largest < 1e-4
    assert timed(session)
    assert ("transformers" in conditions(session).get("model_code", "")) == ("hf_config" in fields)


def result_of(fields):
    problem, graph = sessions.problem(Workload(**fields), 3), sessions.capture_of(Workload(**fields), 3, ())
    expected = evaluated(graph.graph, graph.inputs)
    return graph, parameters_before(problem), expected, list(problem.function(*problem.inputs))


def test_one_wrong_tensor_of_any_kind_is_caught():
    graph, before, expected, ours = result_of(STEP)
    compare(graph, before, expected, ours)
    for kind in ("output", "parameter", "first_moment", "second_moment"):
        place = next(i for i, name in enumerate(graph.output_names) if name.startswith(kind))
        change = expected[place] - before.get(graph.output_names[place], torch.zeros(())).double()
        wrong = [*ours]
        wrong[place] = (ours[place].double() + 1e-2 * change.abs().max()).to(ours[place].dtype)
        with pytest.raises(WrongResult, match=kind):
            compare(graph, before, expected, wrong)


def test_another_precision_type_shape_and_number_are_caught():
    graph, before, expected, ours = result_of({**STEP, "passes": "backward"})
    with pytest.raises(WrongResult, match="is off by"):
        compare(graph, before, expected, [one.bfloat16().float() for one in ours])
    graph, before, expected, ours = result_of(WORKLOADS[0])
    for wrong, reason in (
        ([ours[0].bfloat16(), *ours[1:]], "output is bfloat16, not float32: computed in another precision"),
        ([ours[0].T, *ours[1:]], "shape"),
        (ours[:1], "1 outputs, not 2"),
        ([ours[0] * torch.nan, *ours[1:]], "inf"),
    ):
        with pytest.raises(WrongResult, match=reason):
            compare(graph, before, expected, wrong)


def test_what_depends_on_values_is_refused_in_one_line():
    def branches(x):
        return x.sum() if x.sum().item() > 0 else -x.sum()

    def chooses(x):
        return x[x > 0].sum()

    for function in (branches, chooses):
        forward = Forward(function, (torch.randn(4),), ("x",))
        problem = with_backward(forward, torch.empty((), device="meta"), torch.Generator())
        with pytest.raises(Unavailable, match=r"depends on the values of a tensor[^\n]{,250}\Z"):
            captured(problem)


def test_the_flop_of_a_product_and_of_its_gradients_are_those_by_hand():
    fields = {"operation": "matmul", **SIZES["matmul"]}
    for passes, products in (("forward", 1), ("backward", 3)):
        graph = captured(problem_of(Workload(**fields, passes=passes), 0))
        assert graph.flops == products * 2 * 5 * 8 * 3


def without(operator):
    """Return an engine that computes in PyTorch, and has no code for an operator."""

    def compiled(capture):
        if any(str(node.target) == operator for node in capture.nodes):
            raise RuntimeError(f"In file x:\n  error: no code for '{operator}'\nmore")

        def call():
            with torch.no_grad():
                return capture.graph(*capture.inputs)

        return Compiled(call, size_B=7)

    return Engine("made_up", compiled, version="1")


def with_engine(engine, fields=STEP):
    return dataclasses.replace(build(fields, 3), engine=engine)


@pytest.mark.parametrize("lacking", ["none", "aten.mm.default"])
def test_what_an_engine_has_code_for_is_its_coverage_and_with_code_for_everything_it_is_timed(lacking):
    session = prepare(with_engine(without(lacking)))
    check(session)
    outputs = list(read_once(session))
    found = {(one.metric, one.method): one.value for one in outputs if isinstance(one, Reading)}
    names = [str(node.target) for node in session.capture.nodes]
    covered = sum(flops_of(node) for node in session.capture.nodes if str(node.target) != lacking)
    works = lacking == "none"
    assert found["compiles", ""] == works == timed(session)
    assert found["coverage", "operators"] == pytest.approx(1 - names.count(lacking) / len(names))
    assert found["coverage", "flops"] == pytest.approx(covered / session.capture.flops)
    if works:
        assert found["program_size", ""] == 7
        return
    assert "max_error" not in {metric for metric, _ in found}
    assert "operators without code: aten.mm.default" in {one.text for one in outputs if isinstance(one, Note)}
    assert conditions(session)["message"] == "error: no code for 'aten.mm.default'"


@pytest.mark.parametrize("errors", [(0, 1), (1, 1)])
def test_an_engine_that_is_wrong_even_at_times_is_caught(errors):
    """As threads that add to one place without waiting for each other are."""

    def compiled(capture):
        each = iter(errors)

        def call():
            error = next(each)
            with torch.no_grad():
                return [one + error for one in capture.graph(*capture.inputs)]

        return Compiled(call)

    with pytest.raises(WrongResult, match="is off by"):
        check(prepare(with_engine(Engine("made_up", compiled, version="1"))))


BY_TEXT = Engine("a", lambda capture: Compiled(None, size_B=len(capture.stablehlo)))


def compiled_session():
    session = prepare(with_engine(BY_TEXT, WORKLOADS[2]))
    session.compile()
    return session


def test_what_engines_share_is_made_once_and_counts_for_each(monkeypatch, tmp_path):
    """In a later process with the seconds of the one that made it; what cannot be made is raised for each."""
    monkeypatch.setenv(COMPILED_FOLDER, str(tmp_path))
    calls = []

    def slowly(exported):
        calls.append(exported)
        time.sleep(0.2)
        if len(calls) == 1:
            raise ValueError("error: failed to legalize x")
        return "text\nof two lines"

    clear()
    monkeypatch.setattr(packages, "text_of", slowly)
    for _ in range(2):
        assert compiled_session().failure == "error: failed to legalize x"
    assert len(calls) == 1
    clear()
    sessions = [compiled_session(), compiled_session()]
    clear()
    sessions.append(compiled_session())
    assert len(calls) == 2
    assert all(one.compile_s > 0.2 for one in sessions)
    assert all(one.compiled.size_B == len("text\nof two lines") for one in sessions)


def test_a_graphs_key_is_that_of_its_operators_shapes_types_and_constants_alone():
    def of(function, *inputs):
        return captured(Problem(function, inputs, ("output",), 0, None, None)).key

    ones, table = torch.ones(2, 3), torch.arange(3.0)
    key = of(lambda x: (x * 2,), ones)
    assert key == of(lambda x: (x * 2,), torch.zeros(2, 3))
    others = [
        of(lambda x: (x * 3,), ones),
        of(lambda x: (x + 2,), ones),
        of(lambda x: (x * 2,), torch.ones(3, 2)),
        of(lambda x: (x * 2,), ones.double()),
        of(lambda x: (x * table,), ones),
        of(lambda x: (x * (table + 1),), ones),
    ]
    assert len({key, *others}) == 1 + len(others)


def test_lines_of_our_kernels_are_an_engines_own_and_those_of_a_graph_are_shared():
    text = '"""A module."""\n\nx = 1  # one\n\n\ndef f(a):\n    """Say."""\n    # nothing\n    return a\n'
    assert len(rewrites.code_lines(text)) == 3
    subject = build({"operation": "softmax", **SIZES["softmax"]}, 0)
    graph, kernels = (
        {(one.metric, one.method): one.value for one in source_lines(given)}
        for given in (with_engine(without("none")), triton(subject))
    )
    assert (graph["source_lines", "own"], graph["code_divergence", ""]) == (0, 0)
    own, shared = kernels["source_lines", "own"], kernels["source_lines", "shared"]
    assert own > 40  # softmax.py has two kernels
    assert kernels["code_divergence", ""] == pytest.approx(own / (own + shared))
