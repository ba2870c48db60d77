"""A linear layer with its activation in one kernel: against float64, for GPUs, and in generated code."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_errors import errors, results
from small_kernels import checked, subject_of
from torch import Tensor

from harness.instruments.triton_kernels.targets import NVIDIA, assembly
from harness.records import Reading
from suites.kernels import compile_gemm_template
from suites.kernels import suite as kernels
from suites.kernels.operations import forward_traffic
from suites.kernels.operations import linear_gelu as eager
from suites.kernels.subject import IN_PRODUCT, SEPARATE
from suites.training.triton_kernels import linear_gelu as module
from suites.training.triton_kernels.linear_gelu import CONFIGURATIONS, fitting, linear_gelu

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Relative to the largest value: some roundings of fp32's 6e-8; a few of the type's own, 5e-4 and 4e-3."""


def draw(N: int, D: int, F: int, dtype: torch.dtype, strided: bool = False) -> list[Tensor]:
    """Draw x, weight and bias, with products of about 1."""
    generator = torch.Generator().manual_seed(N + 7 * D + 31 * F)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((N, D), (F, D), (F,)))
    drawn = [one.to(dtype) for one in (x, weight / D**0.5, bias)]
    if strided:
        drawn = [drawn[0].T.contiguous().T, torch.stack((drawn[1], drawn[1]), -1)[..., 1], drawn[2]]
    return [one.requires_grad_() for one in drawn]


def found(inputs: list[Tensor], function=linear_gelu) -> list[float]:
    """Return the errors of y and of three gradients, relative to float64's largest value.

    Of gradients that are sums over rows at least to a quarter of what N terms of about 1 come to: one of few
    elements may cancel.
    """
    shape = len(inputs[0]), len(inputs[1])
    dy = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(inputs[0].dtype)
    ours = results(function, inputs, dy)
    assert {one.dtype for one in ours} == {inputs[0].dtype}
    return errors(ours, eager, inputs, dy, (0.0, 0.0, shape[0] ** 0.5 / 4, shape[0] ** 0.5 / 4))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    N=st.integers(1, 150),
    D=st.integers(1, 140),
    F=st.integers(1, 150),
    dtype=st.sampled_from(list(TOLERANCE)),
    strided=st.booleans(),
)
def test_output_and_gradients_agree_with_float64_at_any_shape(N, D, F, dtype, strided):
    assert max(found(draw(N, D, F, dtype, strided))) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("N", "D", "F"), [(1, 1, 1), (600, 64, 65), (65, 128, 600)])
def test_of_one_element_and_of_several_groups_of_rows(N, D, F, dtype):
    assert max(found(draw(N, D, F, dtype))) <= TOLERANCE[dtype]


def test_what_does_not_fit_is_refused():
    x, weight, bias = torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(5)
    doubles = x.double(), weight.double(), bias.double()
    for inputs in ((x[:, :2], weight, bias), (x, weight, bias[:2]), (x, weight.half(), bias), doubles):
        with pytest.raises(ValueError, match="linear_gelu takes"):
            linear_gelu(*inputs)


def test_every_configuration_that_is_tried_fits_in_shared_memory():
    tried = {dtype: fitting(CONFIGURATIONS, {"x": torch.empty(0, dtype=dtype)}) for dtype in TOLERANCE}
    assert len(tried[torch.bfloat16]) > len(tried[torch.float32]) > 1
    for dtype, configurations in tried.items():
        for one in configurations:
            blocks = one.kwargs["BLOCK_N"] + one.kwargs["BLOCK_F"]
            assert blocks * one.kwargs["BLOCK_D"] * dtype.itemsize * one.num_stages <= 227 * 1024
            assert one.kwargs["BLOCK_D"] <= module.DEEPEST_BLOCK


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_product_and_the_activation_are_one_kernel_on_matrix_units(target):
    (kernel,) = module.kernels("bf16")
    text = assembly(kernel, target)
    matrix_unit = {"sm_90": "wgmma", "gfx942": "v_mfma"}[target]
    assert text.count(".visible .entry" if target in NVIDIA else ".amdhsa_kernel ") == 1
    assert matrix_unit in text
    assert ("ex2.approx" if target in NVIDIA else "v_exp_f32") in text  # the sigmoid's


def activation_of(apply, **changes) -> tuple[str, float]:
    """Return where a variant computes the activation, and the bytes that are reported with it."""
    session = checked(apply(subject_of("linear_gelu", **changes)))
    place = kernels.conditions(session)["activation"]
    (traffic_B,) = (
        one.value
        for one in kernels.read_once(session)
        if isinstance(one, Reading) and one.metric == "forward_traffic"
    )
    assert traffic_B == forward_traffic(session.subject.workload, place)
    return place, traffic_B


@pytest.mark.slow
def test_inductors_template_on_a_cpu_takes_the_activation_where_weights_are_constants():
    """Trained weights are none, and there the library's product is all that max_autotune has."""
    fused, fused_B = activation_of(compile_gemm_template.apply, backward=False)
    separate, separate_B = activation_of(lambda subject: subject, backward=False)
    assert (fused, separate) == (IN_PRODUCT, SEPARATE)
    assert separate_B - fused_B == 2 * 12 * 12 * 4
    assert activation_of(compile_gemm_template.apply)[0] == SEPARATE


def test_other_weights_are_not_taken_for_those_that_were_compiled(monkeypatch):
    made = []
    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx", lambda graph, *_, **__: made.append(graph) or graph
    )
    function = compile_gemm_template.with_constants("CPP")
    kept = [[one.detach() for one in draw(3, D, 2, torch.float32)] for D in (4, 5)]
    for _ in range(2):
        for inputs in kept:
            assert function(*inputs).equal(eager(*inputs))
    assert len(made) == 2


TEMPLATE = """
triton_tem_fused_addmm_gelu_0 = async_compile.triton('triton_tem_fused_addmm_gelu_0', '''
def triton_tem_fused_addmm_gelu_0(arg_A, arg_B, out_ptr):
    acc = tl.dot(a, b, acc)
    {inside}
''', device_str='cuda')
{behind}
"""
POINTWISE = """
triton_poi_fused_gelu_1 = async_compile.triton('triton_poi_fused_gelu_1', '''
def triton_poi_fused_gelu_1(in_ptr, out_ptr):
    tmp = libdevice.tanh(tmp0)
''', device_str='cuda')
"""


@pytest.mark.parametrize(
    ("code", "place"),
    [
        (TEMPLATE.format(inside="tmp = libdevice.tanh(tmp0)", behind=""), IN_PRODUCT),
        (TEMPLATE.format(inside="", behind=POINTWISE), SEPARATE),
        ("extern_kernels.addmm(bias, x, w, out=buf0)" + POINTWISE, SEPARATE),
        ("buf0 = torch.ops.aten._addmm_activation.default(bias, x, w, use_gelu=True)", IN_PRODUCT),
        ("buf0 = torch.ops.mkldnn._linear_pointwise.default(x, w, b, 'gelu', [-1], 'tanh')", IN_PRODUCT),
        ("buf0 = torch.ops.mkldnn._linear_pointwise.default(x, w, b, 'none', [], '')" + POINTWISE, SEPARATE),
    ],
)
def test_a_kernels_source_and_not_its_name_shows_where_the_activation_is(code, place):
    assert compile_gemm_template.kernel_of_activation(code) == place
