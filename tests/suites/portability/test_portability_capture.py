"""What is captured is what PyTorch computes, and an engine that computes something else is caught.

No engine is needed: faulty ones are made up here.
"""

import dataclasses
import time

import pytest
import torch
from torch import nn

from harness.instruments.process import COMPILED_FOLDER
from harness.records import Note, Reading, Unavailable, WrongResult
from suites.portability import graph as rewrites
from suites.portability import packages
from suites.portability.dynamic import evaluated
from suites.portability.eager_readings import source_lines
from suites.portability.graph import Forward, Problem, captured, flops_of
from suites.portability.optimizations import triton
from suites.portability.problem import FORWARDS, problem_of, with_backward
from suites.portability.session import Session, clear, compare, message_of, parameters_before
from suites.portability.subject import Compiled, Engine, Subject
from suites.portability.suite import build, check, conditions, prepare, read_once, timed
from suites.portability.workload import Workload
from suites.training.optimizers import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY

SIZES = {
    "softmax": {"seq_len": 5, "hidden_size": 8},
    "rms_norm": {"seq_len": 5, "hidden_size": 8},
    "swiglu": {"seq_len": 5, "hidden_size": 8},
    "matmul": {"seq_len": 5, "hidden_size": 8, "intermediate_size": 3},
    "attention": {"seq_len": 5, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2},
    "cross_entropy": {"seq_len": 5, "hidden_size": 8, "vocab_size": 7},
    "block": {
        "micro_batch_size": 2, "seq_len": 5, "hidden_size": 8, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 12,
    },
}  # fmt: skip
STEP = {
    "operation": "training_step", "passes": "update", "micro_batch_size": 2, "seq_len": 6, "hidden_size": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24, "vocab_size": 32,
    "num_hidden_layers": 2,
}  # fmt: skip
WORKLOADS = [{"operation": name, **sizes} for name, sizes in SIZES.items()] + [STEP]
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_hidden_layers": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 32, "max_position_embeddings": 16,
}  # fmt: skip


def wide(tensors):
    return [one.double() if one.is_floating_point() else one for one in tensors]


@pytest.mark.parametrize("fields", WORKLOADS, ids=lambda one: one["operation"])
def test_the_graph_in_float64_is_what_pytorch_computes_in_float64(fields):
    problem = problem_of(Workload(**fields), 3)
    graph = captured(problem)
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


@pytest.mark.parametrize("fields", WORKLOADS, ids=lambda one: one["operation"])
def test_plain_pytorch_passes_the_check_and_repeats_the_step_in_place(fields):
    session = Session(build(fields, 1))
    check(session)
    assert 0 <= session.errors.largest < 1e-4
    assert timed(session)


def result_of(fields):
    problem = problem_of(Workload(**fields), 1)
    graph = captured(problem)
    expected = evaluated(graph.graph, graph.inputs)
    return graph, parameters_before(problem), expected, list(problem.function(*problem.inputs))


@pytest.mark.parametrize("kind", ["output", "parameter", "first_moment", "second_moment"])
def test_one_wrong_tensor_of_any_kind_is_caught(kind):
    graph, before, expected, ours = result_of(STEP)
    compare(graph, before, expected, ours)
    place = next(i for i, name in enumerate(graph.output_names) if name.startswith(kind))
    change = expected[place] - before.get(graph.output_names[place], torch.zeros(())).double()
    ours[place] = (ours[place].double() + 1e-2 * change.abs().max()).to(ours[place].dtype)
    with pytest.raises(WrongResult, match=kind):
        compare(graph, before, expected, ours)


def test_a_step_computed_in_bf16_and_returned_in_fp32_is_caught():
    graph, before, expected, ours = result_of({**STEP, "passes": "backward"})
    narrow = [one.bfloat16().float() for one in ours]
    with pytest.raises(WrongResult, match="is off by"):
        compare(graph, before, expected, narrow)


def test_another_type_another_shape_and_another_number_are_caught():
    graph, before, expected, ours = result_of(WORKLOADS[0])
    with pytest.raises(WrongResult, match=r"output is bfloat16, not float32: computed in another precision"):
        compare(graph, before, expected, [ours[0].bfloat16(), *ours[1:]])
    with pytest.raises(WrongResult, match="shape"):
        compare(graph, before, expected, [ours[0].T, *ours[1:]])
    with pytest.raises(WrongResult, match="1 outputs, not 2"):
        compare(graph, before, expected, ours[:1])
    with pytest.raises(WrongResult, match="inf"):
        compare(graph, before, expected, [ours[0] * torch.nan, *ours[1:]])


def of_forward(function, *inputs):
    forward = Forward(function, inputs, ("x",))
    return with_backward(forward, torch.empty((), device="meta"), torch.Generator())


def test_what_depends_on_values_is_refused_in_one_line():
    x = torch.randn(4)

    def branches(x):
        return x.sum() if x.sum().item() > 0 else -x.sum()

    def chooses(x):
        return x[x > 0].sum()

    for function in (branches, chooses):
        with pytest.raises(Unavailable, match="depends on the values of a tensor") as caught:
            captured(of_forward(function, x))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) <= 300


def test_a_config_whose_layers_read_values_is_refused_in_one_line():
    config = {"model_type": "switch_transformers", "d_model": 16}
    with pytest.raises(Unavailable, match=r"'switch_transformers': its layers read values"):
        build({**STEP, "hf_config": config}, 0)


def test_a_mixture_of_experts_of_transformers_is_captured_as_it_computes():
    session = prepare(build({**STEP, "micro_batch_size": 1, "hf_config": MIXTRAL}, 2))
    check(session)
    assert session.errors.largest < 1e-4
    assert "transformers" in conditions(session)["model_code"]


def test_the_flop_of_a_product_and_of_its_gradients_are_those_by_hand():
    n, d, f = 5, 8, 3
    fields = {"operation": "matmul", **SIZES["matmul"]}
    assert captured(problem_of(Workload(**fields, passes="forward"), 0)).flops == 2 * n * d * f
    assert captured(problem_of(Workload(**fields), 0)).flops == 3 * 2 * n * d * f


def test_an_embeddings_gradient_as_a_product_is_the_scattered_one():
    tokens = torch.tensor([[1, 3, 1], [0, 3, 3]])
    table = nn.Embedding(5, 4)
    upstream = torch.randn(2, 3, 4)
    (expected,) = torch.autograd.grad(table(tokens), table.weight, upstream)
    ours = rewrites.embedding_backward_by_one_hot(upstream, tokens, 5, -1, False)
    torch.testing.assert_close(ours, expected)
    graph = captured(problem_of(Workload(**STEP), 0), ("embedding_backward",))
    names = {str(node.target) for node in graph.nodes}
    assert not {name for name in names if "index_put" in name}
    assert {str(n.target) for n in captured(problem_of(Workload(**STEP), 0)).nodes} >= {
        "aten.index_put.default"
    }


def test_lines_of_code_leave_out_comments_docstrings_and_blank_lines():
    text = '"""A module."""\n\nx = 1  # one\n\n\ndef f(a):\n    """Say."""\n    # nothing\n    return a\n'
    assert len(rewrites.code_lines(text)) == 3


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


def readings(subject):
    session = prepare(subject)
    check(session)
    outputs = list(read_once(session))
    found = {(one.metric, one.method): one.value for one in outputs if isinstance(one, Reading)}
    return session, found, [one.text for one in outputs if isinstance(one, Note)]


def with_engine(engine, fields=STEP):
    return dataclasses.replace(build(fields, 1), engine=engine)


def test_an_engine_with_code_for_everything_covers_everything_and_is_timed():
    session, found, _ = readings(with_engine(without("none")))
    assert (found["compiles", ""], found["coverage", "operators"], found["coverage", "flops"]) == (1, 1, 1)
    assert found["program_size", ""] == 7
    assert timed(session)


def test_an_engine_that_is_right_at_times_is_caught():
    """As threads that add to one place without waiting for each other are."""

    def compiled(capture):
        errors = iter([0, 1])

        def call():
            error = next(errors)
            with torch.no_grad():
                return [one + error for one in capture.graph(*capture.inputs)]

        return Compiled(call)

    with pytest.raises(WrongResult, match="is off by"):
        check(prepare(with_engine(Engine("made_up", compiled, version="1"))))


def test_an_engine_without_products_covers_none_of_the_flop_and_is_not_timed():
    session, found, notes = readings(with_engine(without("aten.mm.default")))
    names = [str(node.target) for node in session.capture.nodes]
    products = sum(flops_of(node) for node in session.capture.nodes if str(node.target) != "aten.mm.default")
    assert found["compiles", ""] == 0
    assert found["coverage", "operators"] == pytest.approx(1 - names.count("aten.mm.default") / len(names))
    assert found["coverage", "flops"] == pytest.approx(products / session.capture.flops)
    assert "max_error" not in {metric for metric, _ in found}
    assert not timed(session)
    assert "operators without code: aten.mm.default" in notes
    assert conditions(session)["message"] == "error: no code for 'aten.mm.default'"


def test_an_engine_that_is_wrong_has_no_reading():
    def compiled(capture):
        return Compiled(lambda: [one * 1.01 for one in capture.graph(*capture.inputs)])

    session = prepare(with_engine(Engine("made_up", compiled), WORKLOADS[3]))
    with pytest.raises(WrongResult):
        check(session)


def test_a_missing_engine_of_another_version_is_unavailable_and_no_failure_of_the_graph():
    def compiled(capture):
        raise Unavailable("x 2: its interface is not that of 1, the one tried: no y")

    with pytest.raises(Unavailable):
        check(prepare(with_engine(Engine("made_up", compiled))))


def test_what_engines_share_is_made_once_and_counts_for_each(monkeypatch):
    calls = []

    def slowly(exported):
        calls.append(exported)
        time.sleep(0.2)
        return "text"

    clear()
    monkeypatch.setattr(packages, "text_of", slowly)

    def compiled(capture):
        assert capture.stablehlo == "text"
        return Compiled(lambda: capture.graph(*capture.inputs))

    sessions = [prepare(with_engine(Engine(name, compiled), WORKLOADS[2])) for name in "ab"]
    for one in sessions:
        one.compile()
    assert len(calls) == 1
    assert all(one.compile_s > 0.2 for one in sessions)


def test_stablehlo_of_an_earlier_process_counts_with_its_own_seconds(monkeypatch, tmp_path):
    monkeypatch.setenv(COMPILED_FOLDER, str(tmp_path))

    def slowly(exported):
        time.sleep(0.2)
        return "text\nof two lines"

    monkeypatch.setattr(packages, "text_of", slowly)
    engine = Engine("a", lambda capture: Compiled(None, size_B=len(capture.stablehlo)))
    seconds = []
    for _ in range(2):
        clear()
        session = prepare(with_engine(engine, WORKLOADS[2]))
        session.compile()
        seconds.append(session.compile_s)
        assert session.compiled.size_B == len("text\nof two lines")
        monkeypatch.setattr(packages, "text_of", None)  # an earlier process has called it
    assert min(seconds) > 0.2


def test_what_cannot_be_made_is_tried_once_and_raised_for_each(monkeypatch):
    calls = []

    def failing(exported):
        calls.append(exported)
        raise ValueError("error: failed to legalize x")

    clear()
    monkeypatch.setattr(packages, "text_of", failing)
    engine = Engine("a", lambda capture: Compiled(None, size_B=len(capture.stablehlo)))
    sessions = [prepare(with_engine(engine, WORKLOADS[2])) for _ in range(2)]
    for one in sessions:
        one.compile()
        assert one.failure == "error: failed to legalize x"
    assert len(calls) == 1


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
    step = [captured(problem_of(Workload(**STEP), seed)).key for seed in (1, 2)]
    assert step[0] == step[1]


def test_a_compilers_message_is_one_line():
    assert (
        message_of(ValueError("In x:\n\n  a.mlir:1: error: cannot legalize\n note"))
        == "a.mlir:1: error: cannot legalize"
    )
    assert message_of(ValueError("\nfirst\nsecond")) == "ValueError: first"
    assert len(message_of(ValueError("x" * 999))) <= 240


def test_problems_are_the_same_for_the_same_seed_and_others_for_another():
    for name, sizes in SIZES.items():
        one, again, other = (
            problem_of(Workload(operation=name, **sizes), seed).inputs[-1] for seed in (1, 1, 2)
        )
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
    assert FORWARDS.keys() == {*SIZES, "training_step"}


def test_a_subject_is_plain_and_the_problem_has_what_it_needs():
    assert build(STEP, 0) == Subject(Workload(**STEP), 0)
    assert isinstance(problem_of(Workload(**STEP), 0), Problem)


def test_lines_of_our_kernels_are_an_engines_own_and_those_of_a_graph_are_shared():
    subject = build({"operation": "softmax", **SIZES["softmax"]}, 0)
    graph, kernels = (
        {(one.metric, one.method): one.value for one in source_lines(given)}
        for given in (with_engine(without("none")), triton(subject))
    )
    assert (graph["source_lines", "own"], graph["code_divergence", ""]) == (0, 0)
    own, shared = kernels["source_lines", "own"], kernels["source_lines", "shared"]
    assert own > 40  # softmax.py has two kernels
    assert kernels["code_divergence", ""] == pytest.approx(own / (own + shared))
