"""Fused linear cross-entropy and AdamW in Triton, interpreted, against plain PyTorch in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_errors import errors, results

from harness.instruments.memory.allocator import watch
from suites.kernels.adamw import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY
from suites.training.models.model import linear_cross_entropy as eager
from suites.training.triton_kernels import adamw as adamw_module
from suites.training.triton_kernels import linear_cross_entropy as loss_module
from suites.training.triton_kernels.adamw import BLOCK, adamw
from suites.training.triton_kernels.linear_cross_entropy import linear_cross_entropy

LOSS_TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Relative to the largest value, or to 1/N for gradients of a target foreseen: logits of about 3, rounded to
their type (16-bit: 5e-4 and 4e-3 each) and subtracted."""


def draw(N, D, V, dtype=torch.float32, scale=3.0, strided=False):
    """Draw x, weight and targets; logits of deviation `scale`."""
    generator = torch.Generator().manual_seed(N + 7 * D + 31 * V)
    x = torch.randn(N, D, generator=generator).to(dtype)
    weight = (torch.randn(V, D, generator=generator) * scale / D**0.5).to(dtype)
    targets = torch.randint(V, (2 * N,), generator=generator)
    if strided:
        x, weight = x.T.contiguous().T, torch.stack((weight, weight), 1)[:, 1]
    return x.requires_grad_(), weight.requires_grad_(), targets[::2] if strided else targets[:N]


def found(inputs, factor=1.0):
    """Return the errors of the loss and both gradients, those of the loss times a factor."""
    ours = results(linear_cross_entropy, inputs, torch.tensor(factor))
    assert [one.dtype for one in ours] == [torch.float32, inputs[0].dtype, inputs[0].dtype]
    assert all(one.isfinite().all() for one in ours)
    least = factor * 0.1 / len(inputs[0])
    return errors(ours, eager, inputs, torch.tensor(factor), (0.1, least, least))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(1, 70), st.integers(1, 40), st.integers(1, 400)),
    dtype=st.sampled_from(list(LOSS_TOLERANCE)),
    strided=st.booleans(),
    factor=st.sampled_from((1.0, 0.125, 3.0)),
)
def test_loss_and_gradients_agree_with_float64_at_any_shape(sizes, dtype, strided, factor):
    assert max(found(draw(*sizes, dtype, strided=strided), factor)) <= LOSS_TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 16, 100), (9, 8, 2 * loss_module.WIDEST_BLOCK + 5)])
def test_of_one_row_one_word_and_more_words_than_a_block(sizes, dtype):
    assert max(found(draw(*sizes, dtype))) <= LOSS_TOLERANCE[dtype]


@pytest.mark.parametrize("scale", [1e-4, 100.0, 1e4])
def test_logits_of_any_magnitude_neither_overflow_nor_vanish(scale):
    """The bound: logits of `scale` are rounded to fp32, relative to their size."""
    assert max(found(draw(20, 16, 90, scale=scale))) <= max(2e-5, scale * 64 * 2.0**-24)


def test_a_target_that_is_no_word_makes_the_loss_nan():
    x, weight, targets = draw(20, 16, 50)
    for bad in (-100, 50, 2**40):
        targets[3] = bad
        assert linear_cross_entropy(x, weight, targets).isnan()


def test_a_kept_graph_gives_its_gradients_twice_and_only_those_asked_for_are_made():
    x, weight, targets = draw(12, 8, 30)
    loss = linear_cross_entropy(x, weight, targets)
    first = torch.autograd.grad(loss, (x, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (x, weight))
    assert all(one.equal(other) for one, other in zip(first, second, strict=True))
    for at in range(2):
        inputs = [one.detach().requires_grad_(at == i) for i, one in enumerate((x, weight))]
        (alone,) = torch.autograd.grad(linear_cross_entropy(*inputs, targets), inputs[at])
        assert alone.equal(first[at])
    with torch.no_grad():
        assert linear_cross_entropy(x, weight, targets).equal(loss)


def test_the_logits_are_never_held_whole():
    """Live bytes over the inputs stay within what the kernel's file states; eager's do not."""
    N, D, V, dtype = 192, 16, 1024, torch.bfloat16
    s = dtype.itemsize
    stated_B = 2 * (N * D + V) * s + N * D * s + 4 * V * D + 4 * N + 3 * V * D * s + N * D * s + 4096
    extra_B = {}
    for function in (linear_cross_entropy, eager):
        with watch(torch.device("cpu")) as watched:
            inputs = draw(N, D, V, dtype)
            watched.mark("before")
            watched.mark("step")
            gradients = results(function, inputs, torch.ones(()))
        before, step = (peak.live_B for peak in watched.peaks)
        extra_B[function] = step - before
        del inputs, gradients
    assert extra_B[linear_cross_entropy] <= stated_B < N * V * 4 / 2
    assert extra_B[eager] > N * V * 4


UPDATE_TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative to the largest value, or the smallest normal number: what storing rounds, once per step."""


def updated(sizes, dtype=torch.float32, steps=1, scale=1.0, weight_decay=WEIGHT_DECAY):
    """Return parameters and moments after so many steps: ours, and torch.optim.AdamW's in float64."""
    generator = torch.Generator().manual_seed(3)
    ours = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    theirs = [one.double().requires_grad_() for one in ours]
    moments = [[torch.zeros_like(one) for one in ours] for _ in range(2)]
    peer = torch.optim.AdamW(theirs, LEARNING_RATE, BETAS, EPSILON, weight_decay)
    for step in range(1, steps + 1):
        gradients = [(torch.randn(size, generator=generator) * scale).to(dtype) for size in sizes]
        for one, gradient in zip(theirs, gradients, strict=True):
            one.grad = gradient.double()
        returned = adamw(ours, gradients, *moments, torch.full((1,), float(step)))
        assert all(one is other for one, other in zip(returned, ours, strict=True))
        peer.step()
    states = [peer.state[one] for one in theirs]
    return (ours, *moments), (theirs, *([one[key] for one in states] for key in ("exp_avg", "exp_avg_sq")))


def worst(ours, theirs):
    """Return the error relative to the largest value of each tensor."""
    found = [
        (one.double() - other.detach()).abs().max().item()
        / max(other.detach().abs().max().item(), torch.finfo(one.dtype).smallest_normal)
        for one, other in zip(ours, theirs, strict=True)
        if one.numel()
    ]
    return max(found, default=0.0)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    sizes=st.lists(
        st.sampled_from(((), (1,), (0,), (7, 11), (BLOCK,), (BLOCK + 1,), (3, BLOCK - 1))),
        min_size=1,
        max_size=5,
    ),
    dtype=st.sampled_from(list(UPDATE_TOLERANCE)),
    steps=st.integers(1, 4),
    scale=st.sampled_from((1e-3, 1.0, 30.0)),
)
def test_adamw_is_torchs_at_any_sizes_over_several_steps(sizes, dtype, steps, scale):
    """fp16 alone loses squares of gradients below 2.4e-4, and then divides by zero; so does torch's."""
    if dtype == torch.float16 and scale < 1:
        scale = 1.0
    found = [worst(*pair) for pair in zip(*updated(sizes, dtype, steps, scale), strict=True)]
    assert max(found) <= steps * UPDATE_TOLERANCE[dtype], found


def test_adamw_at_tiny_gradients_keeps_its_bias_correction():
    """The first step moves a parameter by the learning rate, whatever its gradient: to 2e-4 of that step."""
    ((ours,), *_), ((theirs,), *_) = updated([(100,)], scale=1e-4)
    assert (ours.double() - theirs.detach()).abs().max() <= 2e-4 * LEARNING_RATE + 2**-24 * ours.abs().max()


def test_adamw_of_views_that_are_not_aligned():
    """Addresses 4 B beyond a multiple of 16, as views of one flat buffer have them."""
    views = [one[1 : BLOCK + 7] for one in torch.rand(4, 2 * BLOCK)]
    assert any(one.data_ptr() % adamw_module.ALIGNMENT_B for one in views)
    copies = [one.clone() for one in views]
    for of in (views, copies):
        adamw(*([one] for one in of), torch.ones(1))
    assert all(one.equal(other) for one, other in zip(views, copies, strict=True))
    assert adamw([], [], [], [], torch.ones(1)) == []


def test_what_loss_and_adamw_do_not_take_is_refused():
    x, weight, targets = draw(6, 4, 9)
    for inputs in ((x, weight[:, 1:], targets), (x, weight.double(), targets), (x, weight, targets.int())):
        with pytest.raises(ValueError, match=r"takes|of one type|of int64"):
            linear_cross_entropy(*inputs)
    p, g = torch.zeros(3, 2), torch.zeros(3, 2)
    for groups in ([p], [g, g]), ([p], [g.double()]), ([p.T], [g.T]), ([p], [g[1:]]):
        with pytest.raises(ValueError, match=r"of one length|of one type|contiguous tensors of one shape"):
            adamw(*groups, groups[0], groups[0], torch.ones(1))
