"""The kernels suite on tiny shapes: arms against float64, wrong ones caught, formulas counted otherwise."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from harness.config import load
from harness.records import Host, Reading, Unavailable, WrongResult
from suites import kernels
from suites.kernels.against_float64 import check as check_float64
from suites.kernels.awkward import awkward, strided
from suites.kernels.operations import OPERATIONS, adamw, attention, rms_norm
from suites.kernels.reference import attention_reference, evaluate, in_float64
from suites.kernels.subject import Workload
from suites.kernels.work import bind, leaves_of, make_inputs, make_upstream, tensors_of
from suites.model import causal_mask

RUN = load(["suite=kernels"])[0]
ARMS = {arm.name: arm for arm in RUN.arms}
HOST = Host("cpu", "CPU", 1, 2**34, 2)

SMALL = {"batch": 2, "seq_len": 6, "hidden": 16, "heads": 2, "kv_heads": 2, "head_size": 16, "vocab": 11}
SMALL |= {"ffn": 12, "tensors": 3}
NO_BACKWARD = ("adamw", "copy")
HOSTS_OWN = ("copy", "matmul")

HAS = {
    "baseline": set(OPERATIONS),
    "baseline_again": set(OPERATIONS),
    "torch_compile": set(OPERATIONS) - set(HOSTS_OWN),
    "sdpa": {"attention"},
    "autocast_bf16": {"attention", "linear_cross_entropy"},
    "fused_optimizer": {"adamw"},
    "jax_xla": set(OPERATIONS) - {"adamw", *HOSTS_OWN},
    "triton": set(OPERATIONS) - set(HOSTS_OWN),
    "liger": set(),
    "compile_sdpa": set(),
    "compile_sdpa_autocast": set(),
}
COMPILED_HERE = {"swiglu", "attention"}  # of torch_compile's: each takes seconds


def workload_of(operation, **changes):
    fields = {"operation": operation, **SMALL, "backward": operation not in NO_BACKWARD, **changes}
    return {k: v for k, v in fields.items() if k in Workload.__dataclass_fields__}


def subject_of(operation, **changes):
    return kernels.build(workload_of(operation, **changes), seed=1)


def applied(arm, subject):
    module = import_module(f"suites.kernels.{ARMS[arm].module}")
    reason = module.unavailable(HOST)
    if reason:
        raise Unavailable(reason)
    subject = module.apply(subject, module.Settings(**ARMS[arm].settings))
    kernels.check(subject, module)
    return subject


def test_every_arm_is_held_to_what_it_has():
    assert set(HAS) == set(ARMS)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("arm", HAS)
def test_an_arm_gives_what_float64_gives_or_says_why_not(arm, operation):
    if arm == "torch_compile" and operation in HAS[arm] - COMPILED_HERE:
        pytest.skip("compiled in test_torch_compile_of_every_operation")
    subject = subject_of(operation)
    if operation not in HAS[arm]:
        with pytest.raises(Unavailable, match=f"{arm}|{operation}|need a GPU"):
            applied(arm, subject)
        return
    subject = applied(arm, subject)
    readings = [one for one in kernels.prepare(subject) if isinstance(one, Reading)]
    found = {one.metric: one.value for one in readings}
    assert 0 <= found["max_error"] <= subject.tolerance
    assert found["bytes_moved"] > 0
    told = [one.method for one in readings if one.metric == "compile_time"]
    assert bool(told) == (arm in ("torch_compile", "jax_xla"))
    assert set(told) <= ({"cold", "cached"} if arm == "torch_compile" else {""})
    if kernels.timed(subject):
        assert next(iter(kernels.sample(subject))).value > 0
    kernels.close(subject)


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted(HAS["torch_compile"] - COMPILED_HERE))
def test_torch_compile_of_every_operation(operation):
    applied("torch_compile", subject_of(operation))


@pytest.mark.parametrize("operation", sorted({"softmax", "rms_norm", "attention", "linear_cross_entropy"}))
def test_bf16_inputs_are_held_to_bf16s_tolerance(operation):
    subject = applied("baseline", subject_of(operation, dtype="bf16"))
    assert 1e-4 < subject.held["max_error"] < 2e-2


def negated(function):
    class Negated(torch.autograd.Function):
        @staticmethod
        def forward(context, tensor):
            return tensor.view_as(tensor)

        @staticmethod
        def backward(context, gradient):
            return -gradient

    return lambda *inputs: function(*(Negated.apply(x) if isinstance(x, Tensor) else x for x in inputs))


def one_off(function):
    def wrong(*inputs):
        result = function(*inputs).clone()
        result[3, 7] += 0.01 * result.abs().max().item()
        return result

    return wrong


def nan(function):
    def wrong(*inputs):
        result = function(*inputs).clone()
        result[2, 5] = float("nan")
        return result

    return wrong


def short(function):
    return lambda *inputs: function(*inputs)[:-1]


WRONG = {
    negated: r"gradient 0 is .* at \[.*\] of \[12, 16\]: off by .*; swiglu, fp32",
    one_off: r"output 0 is .* at \[3, 7\] of \[12, 16\]",
    nan: r"output 0 is nan .* at \[2, 5\]",
    short: r"outputs have shapes \[\(11, 16\)\], not \[\(12, 16\)\]",
}


@pytest.mark.parametrize("spoil", WRONG, ids=lambda one: one.__name__)
def test_a_wrong_function_is_caught_with_its_place(spoil):
    subject = subject_of("swiglu")
    with pytest.raises(WrongResult, match=WRONG[spoil]):
        kernels.check(
            replace(subject, function=spoil(subject.function)), import_module("suites.kernels.baseline")
        )


def wrong_if_strided(x_ND):
    lies = x_ND.detach().as_strided(x_ND.shape, (x_ND.shape[1], 1))
    return torch.softmax(x_ND + (lies - x_ND.detach()), dim=-1)


def test_a_function_wrong_on_one_awkward_shape_is_caught_naming_it():
    subject = replace(subject_of("softmax"), function=wrong_if_strided, shapes="own and awkward")
    with pytest.raises(WrongResult, match="not contiguous"):
        check_float64(subject)


def test_moments_that_are_not_kept_are_caught():
    def forgets(parameters, gradients, exp_avgs, exp_avg_sqs, step_1):
        kept = [one.clone() for one in exp_avgs]
        OPERATIONS["adamw"].eager(parameters, gradients, exp_avgs, exp_avg_sqs, step_1)
        for one, before in zip(exp_avgs, kept, strict=True):
            one.copy_(before)
        return parameters

    with pytest.raises(WrongResult, match=r"parameter 0|first moment 0"):
        check_float64(replace(subject_of("adamw"), function=forgets))


def test_adamw_is_torchs_own():
    workload = Workload(**workload_of("adamw"))
    parameters, gradients, averages, squares, step_1 = make_inputs(
        OPERATIONS["adamw"], workload, 3, torch.device("cpu")
    )
    theirs = [torch.nn.Parameter(one.clone()) for one in parameters]
    before = [[one.clone() for one in group] for group in (parameters, gradients, averages, squares)]
    optimizer = torch.optim.AdamW(theirs, lr=1e-3, weight_decay=0.01)
    for one, gradient, average, square in zip(theirs, gradients, averages, squares, strict=True):
        one.grad = gradient.clone()
        state = {"step": step_1[0] - 1, "exp_avg": average.clone(), "exp_avg_sq": square.clone()}
        optimizer.state[one] = state
    optimizer.step()
    OPERATIONS["adamw"].eager(parameters, gradients, averages, squares, step_1)
    for one, other in zip(parameters, theirs, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-6, atol=1e-7)
    adamw.at_once(tuple(before), *adamw.scalars(torch.float32, step_1))
    for one, other in zip(before[0], theirs, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-6, atol=1e-7)


def test_adamw_passes_over_memory_as_often_as_torchs_own():
    workload = Workload(**workload_of("adamw", hidden=8, heads=2, kv_heads=2, tensors=2))
    parameters, gradients, averages, squares, step_1 = make_inputs(
        OPERATIONS["adamw"], workload, 3, torch.device("cpu")
    )
    theirs = [torch.nn.Parameter(one.clone()) for one in parameters]
    for one, gradient in zip(theirs, gradients, strict=True):
        one.grad = gradient
    optimizer = torch.optim.AdamW(theirs)
    optimizer.step()  # makes its states
    with Elementwise() as torchs:
        optimizer.step()
    with Elementwise() as ours:
        OPERATIONS["adamw"].eager(parameters, gradients, averages, squares, step_1)
    assert torchs.of_size(96) == ours.of_size(96) == 2 * 8


def test_attentions_mask_is_made_once_a_shape_and_let_go(monkeypatch):
    made = []
    monkeypatch.setattr(attention, "causal_mask", lambda *of: made.append(of) or causal_mask(*of))
    subject = subject_of("attention", seq_len=13)
    inputs = make_inputs(subject.operation, subject.workload, 5, subject.device)
    for _ in range(3):
        subject.operation.eager(*inputs)
    assert len(made) == 1
    kernels.close(subject)
    subject.operation.eager(*inputs)
    assert len(made) == 2


@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_of_attention_in_blocks_is_autograds(causal, monkeypatch):
    monkeypatch.setattr("suites.kernels.reference.QUERIES_AT_ONCE", 4)
    subject = subject_of("attention", causal=causal, seq_len=11)
    inputs = make_inputs(subject.operation, subject.workload, 5, subject.device)
    upstream = make_upstream(subject.operation, inputs, 5)
    found = attention_reference(subject.operation, inputs, upstream)
    outputs, gradients = evaluate(subject.operation, in_float64(inputs), upstream)
    for ours, theirs in zip((*found.outputs, *found.gradients), (*outputs, *gradients), strict=True):
        torch.testing.assert_close(ours.view_as(theirs), theirs, rtol=1e-10, atol=1e-12)


def test_of_many_heads_the_first_and_the_last_are_compared(monkeypatch):
    monkeypatch.setattr("suites.kernels.reference.FEW_PAIRS", 1)
    subject = applied("baseline", subject_of("attention"))
    assert "2 of its heads" in subject.held["compared"]


class Elementwise(TorchDispatchMode):
    """Counts results' elements of every pointwise operation."""

    def __init__(self):
        super().__init__()
        self.elements = 0
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and "view" not in str(function) and "clone" not in str(function):
            self.elements += result.numel()
            self.sizes.append(result.numel())
        return result

    def of_size(self, elements):
        return self.sizes.count(elements)


def test_the_chain_has_the_operations_that_its_formula_counts():
    workload = Workload(**workload_of("pointwise", backward=False))
    inputs = make_inputs(OPERATIONS["pointwise"], workload, 0, torch.device("cpu"))
    with Elementwise() as counted:
        OPERATIONS["pointwise"].eager(*inputs)
    assert OPERATIONS["pointwise"].flops(workload) == counted.elements


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("operation", ["matmul", "attention", "linear_cross_entropy"])
def test_products_are_those_that_torch_counts(operation, backward):
    workload = Workload(**workload_of(operation, backward=backward, causal=False))
    inputs = make_inputs(OPERATIONS[operation], workload, 0, torch.device("cpu"))
    with FlopCounterMode(display=False) as counted:
        outputs = OPERATIONS[operation].eager(*inputs)
        if backward:
            outputs.sum().backward()
    scores = 2 * workload.batch * workload.heads * workload.seq_len**2 * workload.head_size
    again = scores if operation == "attention" and backward else 0  # the fused backward has the scores again
    logits = workload.rows * workload.vocab * (6 if backward else 4)
    beside = logits if operation == "linear_cross_entropy" else 0
    assert OPERATIONS[operation].flops(workload) == counted.get_total_flops() + again + beside


def test_causal_attention_counts_half():
    causal, full = (Workload(**workload_of("attention", causal=one)) for one in (True, False))
    assert 2 * OPERATIONS["attention"].flops(causal) == OPERATIONS["attention"].flops(full)


READS_AGAIN = {  # which inputs, and whether its result, the backward pass reads
    "softmax": ((), True),
    "rms_norm": ((0, 1), False),
    "layer_norm": ((0, 1), False),
    "swiglu": ((0, 1), False),
    "gelu_bias": ((0, 1), False),
    "rotary": ((1, 2), False),
    "linear_cross_entropy": ((0, 1, 2), False),
    "pointwise": ((0, 1), False),
    "attention": ((0, 1, 2), True),
    "matmul": ((0, 1), False),
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("operation", READS_AGAIN)
def test_traffic_is_the_bytes_of_the_tensors_that_must_move(operation, dtype):
    operation_ = OPERATIONS[operation]
    workload = Workload(**workload_of(operation, dtype=dtype))
    inputs = make_inputs(operation_, workload, 0, torch.device("cpu"))
    (output,) = (one for one in tensors_of(operation_.eager(*inputs)))
    forward = [*tensors_of(inputs), *([output] if output.dim() else [])]
    again, result = READS_AGAIN[operation]
    backward = [*(inputs[i] for i in again), *leaves_of(inputs), *([output] if output.dim() else [])]
    backward += [output] if result else []
    whole = sum(one.nbytes for one in (*forward, *backward))
    assert operation_.bytes_moved(workload) == whole
    assert operation_.bytes_moved(replace(workload, backward=False)) == sum(one.nbytes for one in forward)


def test_traffic_of_what_has_no_backward_pass():
    adamw = Workload(**workload_of("adamw"))
    inputs = make_inputs(OPERATIONS["adamw"], adamw, 0, torch.device("cpu"))
    read = sum(one.nbytes for one in tensors_of(inputs[:-1]))
    written = read - sum(one.nbytes for one in inputs[1])
    assert OPERATIONS["adamw"].bytes_moved(adamw) == read + written
    copy = Workload(**workload_of("copy"))
    inputs = make_inputs(OPERATIONS["copy"], copy, 0, torch.device("cpu"))
    assert OPERATIONS["copy"].bytes_moved(copy) == sum(one.nbytes for one in inputs)


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - set(HOSTS_OWN)))
def test_eager_itself_passes_the_awkward_shapes(operation):
    subject = replace(subject_of(operation), shapes="own and awkward")
    check_float64(subject)
    assert "one row" in subject.held["compared"]


@settings(max_examples=15, deadline=None)
@given(
    operation=st.sampled_from(["softmax", "rms_norm", "layer_norm", "swiglu", "gelu_bias", "pointwise"]),
    rows=st.integers(1, 40),
    columns=st.integers(1, 70),
    apart=st.booleans(),
)
def test_any_shape_is_held_to_float64(operation, rows, columns, apart):
    subject = subject_of(operation, batch=1, seq_len=rows, hidden=columns, heads=1, kv_heads=1)
    inputs = make_inputs(subject.operation, subject.workload, rows, subject.device)
    if apart:
        inputs = tuple(strided(one) for one in inputs)
    upstream = make_upstream(subject.operation, inputs, rows)
    outputs, gradients = bind(subject, inputs, upstream)()
    expected = evaluate(subject.operation, in_float64(inputs), upstream)
    # the gradient of a norm of one column is zero, out of terms as large as 1 / sqrt(epsilon)
    least = 2**-22 / rms_norm.EPSILON**0.5 if operation.endswith("norm") else 1e-6
    for ours, theirs in zip((*outputs, *gradients), (*expected[0], *expected[1]), strict=True):
        assert (ours.double() - theirs).abs().max() <= 1e-4 * theirs.abs().max() + least


def test_awkward_shapes_are_awkward():
    cases = {name: inputs for name, _, inputs in awkward(subject_of("swiglu"))}
    assert not cases["not contiguous"][0].is_contiguous()
    assert cases["one row"][0].shape[0] == 1
    assert cases["odd sizes"][0].shape == (37, 131)
    assert cases["large magnitudes"][0].abs().max() > 50


def test_a_workload_for_a_gpu_is_unavailable_without_one():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(Unavailable, match="chosen for a GPU"):
        subject_of("softmax", device="cuda")


@pytest.mark.parametrize("operation", ["rotary", "training_step"])
def test_an_odd_head_is_refused_before_anything_is_made(operation):
    with pytest.raises(Unavailable, match="rotary halves a head: its size must be even, not 7"):
        subject_of(operation, hidden=14, head_size=7)
    assert subject_of("attention", hidden=14, head_size=7)


def test_a_step_without_its_backward_pass_is_refused():
    with pytest.raises(Unavailable, match="backward must be true"):
        subject_of("training_step", backward=False)


@pytest.mark.parametrize("backward", [True, False])
def test_the_passes_of_an_optimizer_are_forward(backward):
    assert kernels.conditions(subject_of("adamw", backward=backward))["passes"] == "forward"


def test_fp32_products_of_a_gpu_that_may_be_tf32_are_said_to_be(monkeypatch):
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr("torch.get_float32_matmul_precision", lambda: "highest")
    assert kernels.precision_of("fp32", gpu) == "fp32"
    monkeypatch.setattr("torch.get_float32_matmul_precision", lambda: "high")
    assert kernels.precision_of("fp32", gpu) == "tf32"
    assert kernels.precision_of("bf16", gpu) == "bf16"
    assert kernels.precision_of("fp32", cpu) == "fp32"


def test_jax_is_not_timed_by_torchs_events():
    subject = replace(subject_of("softmax"), device=torch.device("cuda"))
    with pytest.raises(Unavailable, match="a stream of its own"):
        import_module("suites.kernels.jax_xla").apply(subject, None)


def test_what_torchs_allocator_keeps_empty_is_free(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (5, 80))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 40)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 30)
    assert kernels.free_on_gpu_B(torch.device("cuda")) == 15


def test_attention_that_cannot_fit_is_not_begun(monkeypatch):
    subject = subject_of("attention", seq_len=64)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000})())
    with pytest.raises(MemoryError, match="takes some"):
        kernels.check(subject, import_module("suites.kernels.baseline"))
    kernels.require_memory(replace(subject, attention="sdpa"))


def test_peak_memory_of_explicit_attention_is_its_scores():
    subject = applied("baseline", subject_of("attention", batch=1, seq_len=512, head_size=8))
    sdpa = applied("sdpa", subject_of("attention", batch=1, seq_len=512, head_size=8))
    found = [
        next(one.value for one in kernels.prepare(each) if one[0] == "peak_memory")
        for each in (subject, sdpa)
    ]
    scores_B = 2 * 512 * 512 * 4
    assert 3 * scores_B < found[0] <= kernels.OPERATIONS["attention"].eager_B(subject.workload)
    assert found[1] < scores_B


def test_every_workload_of_the_config_can_be_described():
    for workload in RUN.workloads.values():
        if workload["device"] == "any":
            said = kernels.conditions(kernels.build(workload, 0))
            assert said["operation"] == workload["operation"]
            assert all(isinstance(value, str) for value in said.values())
