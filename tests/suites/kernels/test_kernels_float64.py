"""The check of the kernels suite: wrong functions are caught, and its float64 reference is torch's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_kernels import HOSTS_OWN, checked, subject_of
from torch import Tensor

from harness.records import WrongResult
from suites.kernels.bound_call import make_inputs, make_upstream
from suites.kernels.correctness import attention_reference, evaluate, in_float64
from suites.kernels.operations import OPERATIONS


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


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_function_is_caught_with_its_place(wrong):
    subject, (spoil, said) = subject_of("swiglu"), WRONG[wrong]
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


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - set(HOSTS_OWN)))
def test_eager_itself_passes_the_awkward_shapes(operation):
    subject = replace(subject_of(operation), shapes="own and edge cases")
    assert "one row" in checked(subject).compared


def test_a_gradient_that_is_all_wrong_is_caught_among_large_values_too():
    subject = subject_of("softmax")
    wrong = lambda x: subject.function(x) + 1e-3 * (x - x.detach())  # noqa: E731
    with pytest.raises(WrongResult, match="gradient 0"):
        checked(replace(subject, shapes="edge cases", function=wrong))
