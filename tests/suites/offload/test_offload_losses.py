"""The offload suite's engines on real ranks: losses against a loop by hand in float64; a wrong one shows."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
import torch
from offload_ranks import BF16, SEED, STEPS, VARIANTS, WORKLOAD, pools, subject_of

from harness.records import WrongResult
from suites.offload.subject import shared_techniques
from suites.offload.suite import COMPARED_STEPS, TrainingSession, check_course, device
from suites.training import data as text
from suites.training.correctness import RANKS, compare, plain_losses, require_learning, text_updates
from suites.training.models.model import Transformer
from suites.training.techniques import build_step

__all__ = ["pools"]

ZERO = [name for name, variant in VARIANTS.items() if "zero" in dict(variant.techniques)]
"""The variants by deepspeed's engine."""

COMPARED = [
    name
    for name, variant in VARIANTS.items()
    if variant.module == "baseline"
    or (
        variant.techniques
        and subject_of("baseline").with_techniques(variant.techniques).step.contract.compared
    )
]
"""The variants whose losses must be plain PyTorch's, but for managed memory, which has one rank."""


@pytest.fixture(autouse=True)
def frozen_ranks(pools):
    """Freeze the objects of ranks, so that collections of garbage do not traverse them."""
    for pool in pools.pools.values():
        if len(pool):
            pool.call("frozen_on_rank:freeze")


@cache
def by_hand(ranks, steps, ordinary=None):
    """Return losses of AdamW as its paper has it, in float64, explicit attention, all ranks' batches.

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
    subject = subject_of("baseline", replace(WORKLOAD, dp_size=ranks))
    plain = plain_losses(subject.step, text_updates(subject.step, STEPS), shared_techniques(subject.workload))
    assert plain == pytest.approx(by_hand(ranks, STEPS), rel=1e-4)


@pytest.mark.parametrize("name", COMPARED)
def test_mixed_precision_rounds_and_no_more(pools, name):
    losses = pools.losses("train_steps", subject_of(name, BF16), steps=STEPS)
    assert losses == pytest.approx(by_hand(2, STEPS), rel=1e-2)
    assert losses != pytest.approx(by_hand(2, STEPS), rel=1e-7)


def delayed(workload, after):
    update = {"host_update": {"delay": True, "delay_after": after}}
    return subject_of("baseline", workload).with_techniques([update])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("after", [0, 3])
def test_a_delayed_update_is_as_by_hand(pools, ranks, after):
    losses = pools.losses("train_steps", delayed(replace(WORKLOAD, dp_size=ranks), after), steps=8)
    assert losses == pytest.approx(by_hand(ranks, 8, after), rel=1e-4)
    undelayed = by_hand(ranks, 8)
    assert losses[: after + 1] == pytest.approx(undelayed[: after + 1], rel=1e-4)
    assert losses != pytest.approx(undelayed, rel=1e-3)


def test_with_the_delay_it_learns(pools):
    subject = delayed(WORKLOAD, 3)
    losses = pools.losses("train_steps", subject, steps=60)
    check_course(TrainingSession(subject, None), losses)
    assert fmean(losses[-10:]) < 0.9 * losses[0]


# A wrong one.


def error(subject, losses, allowed=RANKS):
    """Return the error of losses against plain PyTorch's; raises `WrongResult` above what is allowed."""
    updates = text_updates(subject.step, len(losses))
    plain = plain_losses(subject.step, updates, shared_techniques(subject.workload))
    return compare(losses, plain, allowed)


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
def test_a_wrong_trainer_is_caught(pools, name, wrong):
    subject = subject_of(name)
    right = pools.losses("offload_on_rank:spoilt", subject, steps=12, wrong="")
    assert error(subject, right) < 1e-5
    losses = pools.losses("offload_on_rank:spoilt", subject, steps=12, wrong=wrong)
    with pytest.raises(WrongResult, match=r"loss of update \d+ is .* plain PyTorch's .*: off by"):
        error(subject, losses)


SCALE_STEPS = 4
SCALE_ERRORS = {"fp32": 1e-5, "bf16": 1e-3}


def following_scale(name, workload):
    """Return the subject with an epsilon far above every gradient, so that AdamW follows their scale."""
    subject = subject_of(name, workload)
    training = replace(workload.training, adam_epsilon=1.0, learning_rate=0.3)
    return replace(subject, step=build_step(training, subject.step.techniques, SEED))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["baseline", "host_update"])
def test_a_sum_in_place_of_a_mean_is_caught(pools, name, precision):
    """Which AdamW hides."""
    subject = following_scale(name, replace(WORKLOAD, precision=precision))
    allowed = SCALE_ERRORS[precision]
    right = pools.losses("offload_on_rank:spoilt", subject, steps=SCALE_STEPS, wrong="")
    assert error(subject, right, allowed) < allowed / 3
    summed = pools.losses("offload_on_rank:spoilt", subject, steps=SCALE_STEPS, wrong="gradients are summed")
    with pytest.raises(WrongResult, match="loss of update"):
        error(subject, summed, allowed)


@pytest.mark.parametrize("name", ZERO)
def test_every_engine_follows_the_scale_of_gradients(pools, name):
    subject = following_scale(name, BF16)
    losses = pools.losses("train_steps", subject, steps=SCALE_STEPS)
    assert error(subject, losses, SCALE_ERRORS["bf16"]) < SCALE_ERRORS["bf16"] / 3


@pytest.mark.parametrize("rate", [6e-3, 2e-3])
def test_another_learning_rate_is_caught(pools, rate):
    other = subject_of("baseline", replace(WORKLOAD, learning_rate=rate))
    losses = pools.losses("train_steps", other, steps=12)
    with pytest.raises(WrongResult, match="loss of update"):
        error(subject_of("baseline"), losses)


def test_of_a_long_course_in_mixed_precision_the_first_losses_are_compared():
    """In fp32 all are."""
    compared = COMPARED_STEPS[device().type]
    subject = subject_of("baseline", replace(WORKLOAD, dp_size=1, precision="bf16", learning_rate=1e-5))
    updates = text_updates(subject.step, compared + 1)
    right = plain_losses(subject.step, updates, shared_techniques(subject.workload))
    first = right[:compared]
    session = TrainingSession(subject, None)
    check_course(session, [*first, 9.0])
    assert session.max_error == 0
    with pytest.raises(WrongResult, match=rf"^loss of update {compared - 1} is "):
        check_course(session, [*first[:-1], 1.1 * first[-1], 9.0])
    with pytest.raises(WrongResult):
        check_course(session, [*first[:-1], math.nan])
    subject = subject_of("baseline", replace(subject.workload, precision="fp32"))
    right = plain_losses(
        subject.step, text_updates(subject.step, compared + 1), shared_techniques(subject.workload)
    )
    check_course(TrainingSession(subject, None), right)
    with pytest.raises(WrongResult, match=rf"^loss of update {compared} is "):
        check_course(TrainingSession(subject, None), [*right[:-1], 9.0])


@pytest.mark.parametrize("settings", [{}, {"split": False}])
def test_micro_batches_are_compared_with_those_of_plain_pytorch(settings, pools):
    """A sequence of text depends on the number of its micro-batch."""
    subject = subject_of("baseline").with_techniques([{"gradient_accumulation": settings}])
    losses = pools.losses("train_steps", subject, steps=4)
    check_course(TrainingSession(subject, None), losses)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_wrong(bad):
    losses = [4.0, bad, 3.0, 2.0, 2.0, 2.0]
    with pytest.raises(WrongResult, match=f"losses of 6 updates: 4, {bad}"):
        require_learning(losses)
    with pytest.raises(WrongResult):
        check_course(TrainingSession(subject_of("baseline", replace(WORKLOAD, dp_size=1)), None), losses)


@pytest.mark.parametrize("losses", [[4.0] * 8, [4, 4, 3, 3, 3, 3, 4, 4], [3, 3, 3, 3, 3, 3, 3, 5]])
def test_what_does_not_learn_is_wrong(losses):
    with pytest.raises(WrongResult, match="does not learn"):
        check_course(TrainingSession(delayed(WORKLOAD, 0), None), losses)
