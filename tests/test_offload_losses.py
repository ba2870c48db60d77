"""The offload suite's engines on real ranks: losses against a loop by hand in float64; a wrong one shows."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
import torch
from offload_arms import ARMS, BF16, DEEPSPEED, SEED, STEPS, TORCH, WORKLOAD, pools, subject_of

from harness.records import WrongResult
from suites.offload import delayed_update
from suites.offload.correctness import HELD_STEPS, SCALE_STEPS, check_losses, for_scale, plain_losses
from suites.offload.subject import Plan, Subject
from suites.training import data as text
from suites.training.model import Transformer

__all__ = ["pools"]

ALONE = ("zero1", "zero3_offload", "zero3_offload_params", "partial_offload", "zero_infinity")
"""Of deepspeed's variants those that one rank trains by, too: with nothing, a part or all below the
device."""


@pytest.fixture(autouse=True)
def frozen_ranks(pools):
    """What ranks hold is not looked through by each collection of garbage."""
    for pool in pools.pools.values():
        if len(pool):
            pool.call("frozen_on_rank:freeze")


@cache
def by_hand(ranks, steps, ordinary=None):
    """Losses of AdamW as its paper has it, in float64, explicit attention, all ranks' batches at once.

    From step `ordinary` on each update comes one step late, after the next step's gradients.
    """
    torch.manual_seed(SEED)
    model = Transformer(WORKLOAD.shape, attention="explicit").double()
    parameters = list(model.parameters())
    moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in parameters]
    losses, waiting, updates = [], None, 0

    def update(gradients):
        nonlocal updates
        updates += 1
        with torch.no_grad():
            for parameter, gradient, (first, second) in zip(parameters, gradients, moments, strict=True):
                first.mul_(0.9).add_(0.1 * gradient)
                second.mul_(0.999).add_(0.001 * gradient**2)
                mean, deviation = first / (1 - 0.9**updates), (second / (1 - 0.999**updates)).sqrt()
                parameter.mul_(1 - 3e-3 * 0.1)
                parameter.sub_(3e-3 * mean / (deviation + 1e-8))

    for step in range(steps):
        batches = [text.batch(64, (2, 16), SEED, step * ranks + rank) for rank in range(ranks)]
        loss = sum(model(*batch) for batch in batches) / ranks
        gradients = torch.autograd.grad(loss, parameters)
        losses.append(float(loss))
        if ordinary is None or step < ordinary:
            update(gradients)
        else:
            if waiting is not None:
                update(waiting)
            waiting = gradients
    return losses


@pytest.mark.parametrize("ranks", [1, 2])
def test_plain_pytorch_is_as_by_hand(ranks):
    workload = replace(WORKLOAD, ranks=ranks)
    assert plain_losses(workload, SEED, STEPS) == pytest.approx(by_hand(ranks, STEPS), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *(pytest.param(name, 1) for name in TORCH),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ALONE),
        *(pytest.param(name, 2) for name in TORCH),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in DEEPSPEED),
    ],
)
def test_the_losses_are_those_by_hand(pools, name, ranks):
    workload = replace(WORKLOAD, ranks=ranks)
    losses = pools.losses("course", workload, subject_of(name, workload).plan, steps=STEPS)
    assert losses == pytest.approx(by_hand(ranks, STEPS), rel=1e-4)


@pytest.mark.parametrize("name", ARMS)
def test_mixed_precision_rounds_and_no_more(pools, name):
    losses = pools.losses("course", BF16, subject_of(name, BF16).plan, steps=STEPS)
    assert losses == pytest.approx(by_hand(2, STEPS), rel=1e-2)
    assert losses != pytest.approx(by_hand(2, STEPS), rel=1e-7)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("after", [0, 3])
def test_a_delayed_update_is_as_by_hand(pools, ranks, after):
    workload = replace(WORKLOAD, ranks=ranks)
    subject = delayed_update.apply(subject_of("baseline", workload), delayed_update.Settings(after))
    losses = pools.losses("course", workload, subject.plan, steps=8)
    assert losses == pytest.approx(by_hand(ranks, 8, after), rel=1e-4)
    undelayed = by_hand(ranks, 8)
    assert losses[: after + 1] == pytest.approx(undelayed[: after + 1], rel=1e-4)
    assert losses != pytest.approx(undelayed, rel=1e-3)


def test_with_the_delay_it_learns(pools):
    subject = delayed_update.apply(subject_of("baseline"), delayed_update.Settings(3))
    losses = pools.losses("course", WORKLOAD, subject.plan, steps=60)
    assert check_losses(subject, losses) is None
    assert fmean(losses[-10:]) < 0.9 * losses[0]


# A wrong one.


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("baseline", "ddp reduces nothing"),
        ("baseline", "the head is frozen"),
        ("baseline", "moments are forgotten"),
        ("baseline", "batches repeat"),
        ("host_update", "host_update reduces nothing"),
        ("host_update", "host_update keeps parameters"),
    ],
)
def test_a_wrong_engine_is_caught(pools, name, wrong):
    subject = subject_of(name)
    right = pools.losses("offload_on_rank:spoilt", WORKLOAD, subject.plan, steps=12, wrong="")
    assert check_losses(subject, right) < 1e-5
    losses = pools.losses("offload_on_rank:spoilt", WORKLOAD, subject.plan, steps=12, wrong=wrong)
    with pytest.raises(WrongResult, match=r"loss of step \d+ is .* plain PyTorch's .*: off by"):
        check_losses(subject, losses)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["baseline", "host_update"])
def test_a_sum_in_place_of_a_mean_is_caught(pools, name, precision):
    """Which AdamW hides."""
    subject = for_scale(subject_of(name, replace(WORKLOAD, precision=precision)))
    one = (subject.workload, subject.plan)
    right = pools.losses("offload_on_rank:spoilt", *one, steps=SCALE_STEPS, wrong="")
    assert check_losses(subject, right) < subject.tolerance / 3
    summed = pools.losses("offload_on_rank:spoilt", *one, steps=SCALE_STEPS, wrong="gradients are summed")
    with pytest.raises(WrongResult, match="loss of step"):
        check_losses(subject, summed)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEPSPEED)
def test_every_engine_follows_the_scale_of_gradients(pools, name):
    subject = for_scale(subject_of(name, BF16))
    losses = pools.losses("course", subject.workload, subject.plan, steps=SCALE_STEPS)
    assert check_losses(subject, losses) < subject.tolerance / 3


@pytest.mark.parametrize("rate", [6e-3, 2e-3])
def test_another_learning_rate_is_caught(pools, rate):
    subject = subject_of("baseline")
    other = replace(WORKLOAD, learning_rate=rate)
    losses = pools.losses("course", other, subject.plan, steps=12)
    with pytest.raises(WrongResult, match="loss of step"):
        check_losses(subject, losses)


def test_of_a_long_course_the_first_losses_are_held():
    """Of one in mixed precision; but a number each loss is. In fp32 all are held."""
    subject = Subject(replace(WORKLOAD, ranks=1, precision="bf16"), SEED, Plan(), 1e-6)
    right = list(plain_losses(subject.workload, SEED, HELD_STEPS))
    assert check_losses(subject, [*right, 9.0]) == 0
    with pytest.raises(WrongResult, match=rf"^loss of step {HELD_STEPS - 1} is "):
        check_losses(subject, [*right[:-1], 1.01 * right[-1], 9.0])
    with pytest.raises(WrongResult):
        check_losses(subject, [*right, math.nan])
    subject = replace(subject, workload=replace(subject.workload, precision="fp32"))
    right = list(plain_losses(subject.workload, SEED, HELD_STEPS + 1))
    assert check_losses(subject, right) == 0
    with pytest.raises(WrongResult, match=rf"^loss of step {HELD_STEPS} is "):
        check_losses(subject, [*right[:-1], 9.0])


@pytest.mark.parametrize("tolerance", [1e-3, None])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_wrong(bad, tolerance):
    subject = Subject(WORKLOAD, SEED, Plan(), tolerance)
    with pytest.raises(WrongResult, match=f"losses: 4, {bad}"):
        check_losses(subject, [4.0, bad, 3.0])


@pytest.mark.parametrize("losses", [[4.0] * 8, [4, 4, 3, 3, 3, 3, 4, 4], [3, 3, 3, 3, 3, 3, 3, 5]])
def test_what_does_not_learn_is_wrong(losses):
    with pytest.raises(WrongResult, match="does not learn"):
        check_losses(Subject(WORKLOAD, SEED, Plan(), None), losses)
