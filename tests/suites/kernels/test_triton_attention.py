"""Flash attention in Triton, interpreted, against explicit attention in float64: output and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_errors import errors, results

from harness.instruments.memory.allocator import watch
from harness.instruments.triton_kernels.targets import TARGETS, usage
from suites.kernels.operations import attention as eager
from suites.training.triton_kernels.attention import HEAD_SIZES, attention, kernels

TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}
"""Relative to the largest value: some roundings of fp32's 6e-8; a few of the type's own, 5e-4 and 4e-3."""


def draw(shape, dtype, layout="plain", scale=1.0):
    """Draw q, k, v and the output's gradient, of (B, H, T, K)."""
    B, H, T, K = shape
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(4):
        wide = (torch.randn(B, H, T, 2 * K, generator=generator) * scale).to(dtype)
        if layout == "heads_inside":
            made.append(wide[..., :K].transpose(1, 2).contiguous().transpose(1, 2))
        else:
            made.append(wide[..., ::2] if layout == "every_other" else wide[..., :K].contiguous())
    *qkv, d_out = made
    return [one.requires_grad_() for one in qkv], d_out


def found(qkv, d_out, causal, function=attention):
    """Return the errors of the output and each gradient.

    The floor: of one token dq and dk are exactly 0, and roundings of what was subtracted are all there is.
    """
    ours = results(function, (*qkv, causal), d_out)
    assert {one.dtype for one in ours} == {qkv[0].dtype}
    return errors(ours, eager, (*qkv, causal), d_out, (0.0, *3 * [0.1 * float(d_out.abs().max())]))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 150), st.sampled_from((16, 32, 64))),
    causal=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
    layout=st.sampled_from(("plain", "heads_inside", "every_other")),
)
def test_it_agrees_with_float64_at_any_shape(shape, causal, dtype, layout):
    assert max(found(*draw(shape, dtype, layout), causal)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("T", "dtype"), list(zip([1, 65, 128], TOLERANCE, strict=True)))
def test_at_one_row_one_beyond_a_block_and_whole_blocks(T, dtype, causal):
    assert max(found(*draw((1, 1, T, 64), dtype), causal)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("K", HEAD_SIZES)
def test_at_every_head_size(K):
    assert max(found(*draw((1, 2, 33, K), torch.float32), True)) <= TOLERANCE[torch.float32]


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # of scores that the mask hides thereafter
@settings(max_examples=5, deadline=None, derandomize=True)
@given(T=st.integers(2, 70), causal=st.booleans(), power=st.integers(-6, 6))
def test_scores_of_any_magnitude_neither_overflow_nor_lose_precision(T, causal, power):
    """Scores to thousands, where exp alone is infinite. What is left is their own rounding in fp32, which an
    exponential turns from relative to the largest score into relative to its result."""
    qkv, d_out = draw((1, 1, T, 16), torch.float32, scale=2.0**power)
    assert all(one.isfinite().all() for one in results(attention, (*qkv, causal), d_out))
    scores = qkv[0].detach().double() @ qkv[1].detach().double().mT / 4
    assert found(qkv, d_out, causal)[0] <= 16 * 2.0**-24 * max(1.0, scores.abs().max().item())


def test_memory_grows_with_the_length_and_not_with_its_square():
    """Live bytes of a forward and a backward pass: inputs, output, saved numbers and gradients, no scores."""
    with watch(torch.device("cpu")) as watched:
        for T in (64, 256):
            qkv, d_out = draw((1, 1, T, 16), torch.float32)
            watched.mark(str(T))
            results(attention, (*qkv, True), d_out)
            del qkv, d_out
    short, long = (peak.live_B for peak in watched.peaks)
    assert long < 5 * short
    assert long < 256 * (12 * 16 + 4) * 4


def test_gradients_through_a_broadcast_gradient():
    """As `out.sum()` sends it: one number, seen everywhere through strides of zero."""
    qkv, _ = draw((1, 2, 20, 16), torch.float32)
    assert max(found(qkv, torch.ones(()).expand(1, 2, 20, 16), True)) <= TOLERANCE[torch.float32]


def test_what_it_does_not_take_is_refused():
    (q, k, v), _ = draw((1, 1, 4, 16), torch.float32)
    for inputs in ((q, k[:, :, 1:], v), (q, k.double(), v), (q[..., :9], k[..., :9], v[..., :9])):
        with pytest.raises(ValueError, match=r"of one shape|of one type|head size 9"):
            attention(*inputs, True)


FOR_EACH = [*(("bf16", target, 128) for target in TARGETS), ("fp32", "sm_90", 128), ("fp32", "gfx90a", 64)]
"""Type, target and head size: each target, each type for both makers."""


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "target", "size"), FOR_EACH)
def test_every_kernel_compiles_for_every_target(dtype, target, size):
    for one in kernels(dtype):
        sized = one._replace(constexprs={**one.constexprs, "HEAD": size})
        assert usage(sized, target).registers > 0, one.name
