"""The check of the kernels suite: wrong functions are caught, and its float64 reference is torch's own."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_kernels import HOSTS_OWN, applied, checked, subject_of, workload_of
from torch import Tensor

from harness.records import WrongResult
from suites.kernels import adamw
from suites.kernels.bound_call import bind, make_inputs, make_upstream
from suites.kernels.correctness import (
    attention_reference,
    edge_cases,
    evaluate,
    in_float64,
    reference_of,
    strided,
)
from suites.kernels.operations import OPERATIONS, RMS_NORM_EPSILON
from suites.kernels.workload import Workload


def negated(function):
    class Negated(torch.autograd.Function):
        @staticmethod
        def forward(context, tensor):
            return tensor.view_as(tensor)

        @staticmethod
        def backward(context, gradient):
            return -gradient

    return lambda *inputs: function(*(Negated.apply(x) if isinstance(x, Tensor) else x for x in inputs))


def changed(at, value):
    """Return what spoils one element of a function's result."""

    def spoil(function):
        def wrong(*inputs):
            result = function(*inputs).clone()
            result[at] = value(result)
            return result

        return wrong

    return spoil


WRONG = {
    "negated": (negated, r"gradient 0 is .* at \[.*\] of \[12, 16\]: off by .*; swiglu, fp32"),
    "one off": (
        changed((3, 7), lambda result: result[3, 7] + 0.01 * result.abs().max().item()),
        r"output 0 is .* at \[3, 7\] of \[12, 16\]",
    ),
    "nan": (changed((2, 5), lambda result: torch.nan), r"output 0 is nan .* at \[2, 5\]"),
    "short": (
        lambda function: lambda *inputs: function(*inputs)[:-1],
        r"outputs have shapes \[\(11, 16\)\], not \[\(12, 16\)\]",
    ),
}


def test_a_wrong_function_is_caught_with_its_place():
    subject = subject_of("swiglu")
    for spoil, said in WRONG.values():
        with pytest.raises(WrongResult, match=said):
            checked(replace(subject, function=spoil(subject.function)))


def wrong_if_strided(x_ND):
    lies = x_ND.detach().as_strided(x_ND.shape, (x_ND.shape[1], 1))
    return torch.softmax(x_ND + (lies - x_ND.detach()), dim=-1)


def test_a_function_wrong_on_one_awkward_shape_is_caught_naming_it():
    subject = replace(subject_of("softmax"), function=wrong_if_strided, shapes="own and edge cases")
    with pytest.raises(WrongResult, match="not contiguous"):
        checked(subject)


def test_moments_that_are_not_kept_are_caught():
    def forgets(parameters, gradients, exp_avgs, exp_avg_sqs, step_1):
        kept = [one.clone() for one in exp_avgs]
        OPERATIONS["adamw"].eager(parameters, gradients, exp_avgs, exp_avg_sqs, step_1)
        for one, before in zip(exp_avgs, kept, strict=True):
            one.copy_(before)
        return parameters

    with pytest.raises(WrongResult, match=r"parameter 0|first moment 0"):
        checked(replace(subject_of("adamw"), function=forgets))


def test_adamw_is_torchs_own():
    made = make_inputs(OPERATIONS["adamw"], Workload(**workload_of("adamw")), 3, torch.device("cpu"))
    parameters, gradients, averages, squares, step_1 = made
    theirs = [torch.nn.Parameter(one.clone()) for one in parameters]
    before = [[one.clone() for one in group] for group in (parameters, gradients, averages, squares)]
    optimizer = torch.optim.AdamW(theirs, lr=1e-3, weight_decay=0.01)
    for one, gradient, average, square in zip(theirs, gradients, averages, squares, strict=True):
        one.grad = gradient.clone()
        state = {"step": step_1[0] - 1, "exp_avg": average.clone(), "exp_avg_sq": square.clone()}
        optimizer.state[one] = state
    optimizer.step()
    OPERATIONS["adamw"].eager(parameters, gradients, averages, squares, step_1)
    adamw.at_once(tuple(before), *adamw.scalars(torch.float32, step_1))
    for ours in (parameters, before[0]):
        torch.testing.assert_close(ours, [one.detach() for one in theirs], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_of_attention_in_blocks_is_autograds(causal, monkeypatch):
    monkeypatch.setattr("suites.kernels.correctness.QUERIES_AT_ONCE", 4)
    subject = subject_of("attention", causal=causal, seq_len=11)
    inputs = make_inputs(subject.operation, subject.workload, 5, subject.device)
    upstream = make_upstream(subject.operation, inputs, 5)
    found = attention_reference(subject.operation, inputs, upstream)
    outputs, gradients = evaluate(subject.operation, in_float64(inputs), upstream)
    for ours, theirs in zip((*found.outputs, *found.gradients), (*outputs, *gradients), strict=True):
        torch.testing.assert_close(ours.view_as(theirs), theirs, rtol=1e-10, atol=1e-12)


def test_of_many_heads_the_first_and_the_last_are_compared(monkeypatch):
    monkeypatch.setattr("suites.kernels.correctness.FEW_PAIRS", 1)
    session = applied("baseline", subject_of("attention"))
    subject = session.subject
    assert "2 of its heads" in session.compared
    kept = reference_of(subject.operation, subject.workload, subject.seed, subject.device).num_attention_heads
    last = (subject.workload.micro_batch_size - 1, subject.workload.num_attention_heads - 1)
    assert set(kept) == {(0, 0), last}


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - set(HOSTS_OWN)))
def test_eager_itself_passes_the_awkward_shapes(operation):
    subject = replace(subject_of(operation), shapes="own and edge cases")
    assert "one row" in checked(subject).compared


@pytest.mark.parametrize("variant", ["baseline", "sdpa"])
def test_of_one_token_attentions_scores_have_no_gradient_and_any_order_of_summing_rounds_it(variant):
    """The gradient of Q and K is a difference of two equal sums, over the head, of dO V."""
    subject = replace(applied(variant, subject_of("attention")).subject, shapes="edge cases")
    for seed in range(1, 10):
        checked(replace(subject, seed=seed))


def test_without_allowing_for_cancellation_plain_pytorch_itself_would_be_called_wrong(monkeypatch):
    """Of large values a softmax is one or zero, and its gradient a rounding."""
    subjects = [replace(subject_of("softmax"), shapes="edge cases", seed=seed) for seed in range(1, 40)]
    deque(map(checked, subjects[:8]), maxlen=0)
    monkeypatch.setattr("suites.kernels.correctness.ROUNDING", 0.0)
    with pytest.raises(WrongResult, match=r"gradient 0 .*large magnitudes"):
        deque(map(checked, subjects), maxlen=0)


def test_a_gradient_that_is_all_wrong_is_caught_among_large_values_too():
    subject = subject_of("softmax")
    wrong = lambda x: subject.function(x) + 1e-3 * (x - x.detach())  # noqa: E731
    with pytest.raises(WrongResult, match="gradient 0"):
        checked(replace(subject, shapes="edge cases", function=wrong))


@settings(max_examples=15, deadline=None)
@given(
    operation=st.sampled_from(["softmax", "rms_norm", "layer_norm", "swiglu", "gelu_bias", "pointwise"]),
    rows=st.integers(1, 40),
    columns=st.integers(1, 70),
    apart=st.booleans(),
)
def test_any_shape_agrees_with_float64(operation, rows, columns, apart):
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    subject = subject_of(operation, micro_batch_size=1, seq_len=rows, hidden_size=columns, **heads)
    inputs = make_inputs(subject.operation, subject.workload, rows, subject.device)
    if apart:
        inputs = tuple(strided(one) for one in inputs)
    upstream = make_upstream(subject.operation, inputs, rows)
    outputs, gradients = bind(subject, inputs, upstream)()
    expected = evaluate(subject.operation, in_float64(inputs), upstream)
    # the gradient of a norm of one column is zero, out of terms as large as 1 / sqrt(epsilon)
    least = 2**-22 / RMS_NORM_EPSILON**0.5 if operation.endswith("norm") else 1e-6
    for ours, theirs in zip((*outputs, *gradients), (*expected[0], *expected[1]), strict=True):
        assert (ours.double() - theirs).abs().max() <= 1e-4 * theirs.abs().max() + least


def test_awkward_shapes_are_awkward():
    cases = {name: inputs for name, _, inputs in edge_cases(subject_of("swiglu"))}
    assert not cases["not contiguous"][0].is_contiguous()
    assert cases["one row"][0].shape[0] == 1
    assert cases["odd sizes"][0].shape == (37, 131)
    assert cases["large magnitudes"][0].abs().max() > 50
