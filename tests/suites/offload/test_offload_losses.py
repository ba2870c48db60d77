"""The offload suite's engines on real ranks: losses against a loop by hand in float64; a wrong one shows."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from offload_ranks import BF16, BLOCKS, COUNT, REST, SEED, STEPS, VARIANTS, WORKLOAD, pools, subject_of

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


def is_compared(variant):
    """Whether losses must be plain PyTorch's, but for managed memory, which has one rank."""
    if not variant.techniques:
        return variant.module == "baseline"
    return subject_of("baseline").with_techniques(variant.techniques).step.contract.compared


COMPARED = [name for name, variant in VARIANTS.items() if is_compared(variant)]


@pytest.fixture(autouse=True)
def frozen_ranks(pools):
    """Freeze the objects of ranks, so that collections of garbage do not traverse them."""
    for pool in pools.pools.values():
        if len(pool):
            pool.call("offload_on_rank:freeze")


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


@pytest.mark.parametrize(("ranks", "after"), [(1, 0), (2, 3)])
def test_a_delayed_update_is_as_by_hand(pools, ranks, after):
    losses = pools.losses("train_steps", delayed(replace(WORKLOAD, dp_size=ranks), after), steps=8)
    assert losses == pytest.approx(by_hand(ranks, 8, after), rel=1e-4)
    undelayed = by_hand(ranks, 8)
    assert losses[: after + 1] == pytest.approx(undelayed[: after + 1], rel=1e-4)
    assert losses != pytest.approx(undelayed, rel=1e-3)


def error(subject, losses, allowed=RANKS):
    """Return the error of losses against plain PyTorch's; raises `WrongResult` above what is allowed."""
    updates = text_updates(subject.step, len(losses))
    plain = plain_losses(subject.step, updates, shared_techniques(subject.workload))
    return compare(losses, plain, allowed)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("baseline", "ddp reduces nothing"),
        ("baseline", "moments are forgotten"),
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


@pytest.mark.parametrize(("name", "precision"), [("baseline", "bf16"), ("host_update", "fp32")])
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


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_of_a_long_course_in_mixed_precision_the_first_losses_are_compared_and_in_fp32_all(precision):
    compared = COMPARED_STEPS[device().type]
    workload = replace(WORKLOAD, dp_size=1, precision=precision, learning_rate=1e-5)
    subject = subject_of("baseline", workload)
    updates = text_updates(subject.step, compared + 1)
    right = plain_losses(subject.step, updates, shared_techniques(workload))
    first = right[:compared]
    session = TrainingSession(subject, None)
    check_course(session, [*first, 9.0] if precision == "bf16" else right)
    assert session.max_error == 0
    wrong = [[*first[:-1], 1.1 * first[-1], 9.0], [*first[:-1], math.nan]]
    for losses in wrong if precision == "bf16" else [[*first, 9.0]]:
        with pytest.raises(WrongResult):
            check_course(session, losses)


def test_losses_that_are_no_numbers_or_do_not_learn_are_wrong():
    with pytest.raises(WrongResult, match="losses of 6 updates: 4, nan"):
        require_learning([4.0, math.nan, 3.0, 2.0, 2.0, 2.0])
    session = TrainingSession(delayed(WORKLOAD, 0), None)
    check_course(session, [4, 4, 3, 3, 3, 3, 2, 2])
    for losses in ([4.0] * 8, [4, 4, 3, 3, 3, 3, 4, 4], [3, 3, 3, 3, 3, 3, 3, 5]):
        with pytest.raises(WrongResult, match="does not learn"):
            check_course(session, losses)


NOTHING = ((0, 0, 0), (0, 0, 0))
BY_HAND = {  # bytes per parameter up, down and on the host: in bf16, in fp32
    "baseline": NOTHING,
    "fsdp2": NOTHING,
    "zero3": NOTHING,
    # The least: parameters up, gradients down. Held: gradient and parameter to send, fp32 copy, moments.
    "host_update": ((2, 2, 2 + 2 + 4 + 4 + 8), (4, 4, 4 + 4 + 4 + 4 + 8)),
    "zero2_offload": ((2, 4, None), (4, 4, None)),  # gradients are made fp32 before they go
    # Gradients go down as they are, up again, are widened, and go down as fp32.
    "zero3_offload": ((2 + 2, 2 + 4, 2 + 4 + 4 + 8), (4 + 4, 4 + 4, 4 + 4 + 4 + 8)),
    # fp32 shards up for the forward pass, those of blocks again for the backward pass; fp32 gradients down.
    "fsdp2_offload": ((4 * (COUNT + BLOCKS) / COUNT, 4, 4 + 4 + 8),) * 2,
}
EXACT = ("baseline", "fsdp2", "host_update", "fsdp2_offload")  # deepspeed moves a number or two beside


@pytest.fixture
def steady(pools):
    """What ranks return of a steady step."""

    def returned(name, workload=BF16):
        pools.pool(workload.dp_size).call("offload_on_rank:settle")
        return pools.call("footprint", subject_of(name, workload))

    return returned


CASES = [(name, precision) for precision in ("bf16", "fp32") for name in ("host_update", "zero3_offload")]
CASES += [(name, "bf16") for name in BY_HAND if (name, "bf16") not in CASES]
CASES += [("zero2_offload", "fp32"), ("fsdp2_offload", "fp32")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), CASES)
def test_bytes_moved_and_held_are_those_by_hand(steady, name, precision):
    returned = steady(name, replace(WORKLOAD, precision=precision))
    totals = [sum(one[of] for one in returned) / COUNT for of in ("up_B", "down_B", "host_B")]
    slack = 1e-9 if name in EXACT else 2e-3
    for total, due in zip(totals, BY_HAND[name][precision == "fp32"], strict=True):
        assert due is None or total == pytest.approx(due, rel=slack, abs=slack)
    if name == "host_update":  # each rank moves its share
        assert [one["up_B"] for one in returned] == [one["down_B"] for one in returned]
        assert returned[0]["up_B"] / COUNT == pytest.approx(totals[0] / 2, rel=0.1)


FSDP2_SENT = 1 + (2 * BLOCKS + REST) / COUNT  # what is around the blocks is not gathered again
SENT = {  # at least and, with gloo's heads, at most: times (ranks - 1) / ranks of the model, as in a ring
    "baseline": (2, 2.06),  # an all-reduce
    "zero2": (3, 3.09),  # deepspeed reduces gradients by an all-reduce, and gathers parameters
    "fsdp2": (FSDP2_SENT, 1.03 * FSDP2_SENT),
    "zero3": (2, 3.03),  # a reduce-scatter, an all-gather, and part of another
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dp_size"), [("fsdp2", 3), *((name, 2) for name in SENT)])
def test_a_rank_sends_the_bytes_of_its_rings(steady, name, dp_size):
    ring_B = 4 * COUNT * (dp_size - 1) / dp_size
    least, most = SENT[name]
    for one in steady(name, replace(WORKLOAD, dp_size=dp_size)):
        for sent_B in one["sent_B"]:
            assert least <= sent_B / ring_B <= most
