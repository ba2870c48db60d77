"""Flash attention in Triton, interpreted, against explicit attention in float64: output and gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.instruments.memory.allocator import watch
from harness.instruments.triton_kernels.targets import TARGETS, usage
from suites.kernels.operations import attention as eager
from suites.training.triton_kernels import attention as module
from suites.training.triton_kernels.attention import HEAD_SIZES, attention, kernels

TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}
"""Relative to the largest value: some roundings of fp32's 6e-8; a few of the type's own, 5e-4 and 4e-3."""

FEW = settings(max_examples=8, deadline=None, derandomize=True)
FEWER = settings(max_examples=5, deadline=None, derandomize=True)


def draw(
    shape: tuple[int, ...], dtype: torch.dtype, layout: str = "plain", scale: float = 1.0, seed: int = 0
):
    """Draw q, k, v and the output's gradient, of (B, H, T, K)."""
    B, H, T, K = shape
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(4):
        wide = (torch.randn(B, H, T, 2 * K, generator=generator) * scale).to(dtype)
        if layout == "heads_inside":
            made.append(wide[..., :K].transpose(1, 2).contiguous().transpose(1, 2))
        elif layout == "every_other":
            made.append(wide[..., ::2])
        else:
            made.append(wide[..., :K].contiguous())
    q, k, v, d_out = made
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), d_out


def run(function, q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, causal: bool) -> tuple[Tensor, ...]:
    out = function(q, k, v, causal)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), d_out))


def in_float64(q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, causal: bool) -> tuple[Tensor, ...]:
    return run(eager, *(x.detach().double().requires_grad_() for x in (q, k, v)), d_out.double(), causal)


def errors(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], d_out: Tensor) -> list[float]:
    """Return the worst error of the output and each gradient, relative to its largest value.

    The floor: of one token dq and dk are exactly 0, and roundings of what was subtracted are all there is.
    """
    floors = (0.0, *3 * [0.1 * d_out.abs().max().item()])
    return [
        (one.double() - other).abs().max().item() / max(other.abs().max().item(), floor)
        for one, other, floor in zip(ours, theirs, floors, strict=True)
    ]


def agree(shape: tuple[int, ...], dtype: torch.dtype, causal: bool, **how: object) -> None:
    inputs = draw(shape, dtype, **how)
    ours = run(attention, *inputs, causal)
    assert [x.dtype for x in ours] == 4 * [dtype]
    assert [x.shape for x in ours] == 4 * [torch.Size(shape)]
    found = errors(ours, in_float64(*inputs, causal), inputs[-1])
    assert max(found) <= TOLERANCE[dtype], found


@FEW
@given(
    B=st.integers(1, 2),
    H=st.integers(1, 3),
    T=st.integers(1, 150),
    K=st.sampled_from((16, 32, 64)),
    causal=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
    layout=st.sampled_from(("plain", "heads_inside", "every_other")),
)
def test_it_agrees_with_float64_at_any_shape(B, H, T, K, causal, dtype, layout):
    agree((B, H, T, K), dtype, causal, layout=layout)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("T", [1, 65, 128])
def test_at_one_row_one_beyond_a_block_and_whole_blocks(T, dtype, causal):
    agree((1, 1, T, 64), dtype, causal)


@pytest.mark.parametrize("K", HEAD_SIZES)
def test_at_every_head_size(K):
    agree((1, 2, 33, K), torch.float32, True)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # of scores that the mask hides thereafter
@FEWER
@given(T=st.integers(2, 70), causal=st.booleans(), power=st.integers(-6, 6))
def test_scores_of_any_magnitude_neither_overflow_nor_lose_precision(T, causal, power):
    """Scores to thousands, where exp alone is infinite. What is left is their own rounding in fp32, which an
    exponential turns from relative to the largest score into relative to its result."""
    scale = 2.0**power
    inputs = draw((1, 1, T, 16), torch.float32, scale=scale)
    ours = run(attention, *inputs, causal)
    assert all(x.isfinite().all() for x in ours)
    scores = inputs[0].detach().double() @ inputs[1].detach().double().mT / 4
    rounding = 16 * 2.0**-24 * max(1.0, scores.abs().max().item())
    theirs = in_float64(*inputs, causal)
    out_error = (ours[0].double() - theirs[0]).abs().max().item() / theirs[0].abs().max().item()
    assert out_error <= rounding


def test_a_mask_forgotten_or_half_kept_is_found():
    """The comparison can fail: what a wrong kernel gives is far beyond the tolerance."""
    inputs = draw((1, 2, 70, 32), torch.float32)
    theirs = in_float64(*inputs, True)
    without_mask = run(attention, *inputs, False)
    assert max(errors(without_mask, theirs, inputs[-1])) > 1000 * TOLERANCE[torch.float32]
    one_too_few = run(attention, inputs[0], inputs[1], inputs[2].roll(1, 2), inputs[-1], True)
    assert max(errors(one_too_few, theirs, inputs[-1])) > 1000 * TOLERANCE[torch.float32]


def test_an_unscaled_gradient_is_found(monkeypatch):
    """dq and dk without 1/sqrt(K): caught by the gradients alone, for the output is right."""
    inputs = draw((1, 1, 40, 32), torch.float32)
    given_launch = module.launch

    def unscaled(kernel, grid, *arguments, **options):
        if kernel in (module.backward_kv, module.backward_q):
            arguments = (*arguments[:-1], 1.0)
        given_launch(kernel, grid, *arguments, **options)

    monkeypatch.setattr(module, "launch", unscaled)
    found = errors(run(attention, *inputs, True), in_float64(*inputs, True), inputs[-1])
    assert found[0] <= TOLERANCE[torch.float32]
    assert found[1] > 1
    assert found[2] > 1
    assert found[3] <= TOLERANCE[torch.float32]


def test_what_comes_later_changes_nothing_earlier():
    q, k, v, _ = draw((1, 1, 100, 16), torch.float32)
    whole = attention(q, k, v, True)[:, :, :37]
    torch.testing.assert_close(attention(*(x[:, :, :37] for x in (q, k, v)), True), whole, rtol=0, atol=1e-6)


def test_the_log_sum_exp_is_what_is_saved():
    q, k, v, _ = draw((1, 2, 50, 16), torch.float32)
    saved = attention(q, k, v, False).grad_fn.saved_tensors
    scores = q.detach().double() @ k.detach().double().mT / 4
    expected = scores.logsumexp(-1) / math.log(2)
    torch.testing.assert_close(saved[-1].double(), expected, rtol=1e-6, atol=1e-6)
    assert sum(x.numel() for x in saved) == 4 * q.numel() + 100


def test_memory_grows_with_the_length_and_not_with_its_square():
    """Live bytes of a forward and a backward pass: inputs, output, saved numbers and gradients, no scores."""
    with watch(torch.device("cpu")) as watched:
        for T in (64, 256):
            q, k, v, d_out = draw((1, 1, T, 16), torch.float32)
            watched.mark(str(T))
            run(attention, q, k, v, d_out, True)
            del q, k, v, d_out
    short, long = (peak.live_B for peak in watched.peaks)
    assert long < 5 * short
    assert long < 256 * (12 * 16 + 4) * 4


def test_gradients_through_a_broadcast_gradient():
    """As `out.sum()` sends it: one number, seen everywhere through strides of zero."""
    *tensors, _ = draw((1, 2, 20, 16), torch.float32)
    inputs = (*tensors, torch.ones(()).expand(1, 2, 20, 16))
    found = errors(run(attention, *inputs, True), in_float64(*inputs, True), inputs[-1])
    assert max(found) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda q, k, v: (q, k[:, :, 1:], v), "of one shape"),
        (lambda q, k, v: (q, k.double(), v), "of one type"),
        (lambda q, k, v: (q[..., :9], k[..., :9], v[..., :9]), "head size 9 is not one of 16, 32"),
    ],
)
def test_what_it_does_not_take_is_refused_in_words(change, words):
    q, k, v, _ = draw((1, 1, 4, 16), torch.float32)
    with pytest.raises(ValueError, match=words):
        attention(*change(q, k, v), True)


FOR_EACH = [
    *(("bf16", target, 128) for target in TARGETS),
    ("fp32", "sm_90", 128),
    ("fp32", "gfx90a", 64),
]
"""Type, target and head size: each target, each type for both makers."""


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "target", "size"), FOR_EACH)
def test_every_kernel_compiles_for_every_target(dtype, target, size):
    for one in kernels(dtype):
        sized = one._replace(constexprs={**one.constexprs, "HEAD": size})
        assert usage(sized, target).registers > 0, one.name
