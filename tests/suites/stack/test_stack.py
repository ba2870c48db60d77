"""The stack suite: its combinations, equal work, loading ahead, and the micro-batch that memory allows."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import psutil
import pytest
import torch
from variants import applied, tiny_run

from harness.config.run import load
from harness.records import WrongResult
from suites.stack import suite as stack
from suites.stack.suite import (
    Session,
    Subject,
    UpdateLoader,
    baseline_of,
    baseline_updates,
    gradients_B,
    stop_worker,
)
from suites.training.models import head_loss
from suites.training.techniques import named

RUN = load(["suite=stack"])[0]
VARIANTS = {variant.name: variant for variant in RUN.variants}
TINY = tiny_run("stack").workloads["step_1m_1k"]
LONG = {"seq_len": 512, "gradient_accumulation_steps": 2}
"""Long enough for the scores to be most of the memory."""

FACTORS = ("bf16", "compile", "flash", "fused", "ahead", "batch")
TECHNIQUES = {
    "bf16": {"mixed_precision"},
    "compile": {"compile"},
    "flash": {"attention"},
    "fused": {"loss", "optimizer"},
}


def subject_of(variant: str, **changes: Any) -> Subject:
    subject: Subject = applied("stack", VARIANTS[variant], stack.build({**TINY, **changes}, 1))
    return subject


def checked(subject: Subject) -> Session:
    session = stack.prepare(subject)
    stack.check(session)
    return session


def test_the_variants_are_all_combinations_with_what_their_names_say() -> None:
    every = ["_".join(one) for size in range(1, 7) for one in combinations(FACTORS, size)]
    own = {name.partition(".")[2]: one for name, one in VARIANTS.items() if name.startswith("factorial.")}
    assert sorted(own) == sorted(every)
    for name, variant in own.items():
        chosen = name.split("_")
        wanted = set().union(*(TECHNIQUES.get(one, set()) for one in chosen))
        assert {technique for technique, _ in named(variant.techniques)} == wanted, name
        assert variant.settings == {"loads_ahead": "ahead" in chosen, "fills_memory": "batch" in chosen}
        assert variant.title == " + ".join(chosen)


def test_an_update_has_the_same_tokens_whatever_the_micro_batch() -> None:
    for name, workload in RUN.workloads.items():
        if workload["device"] == "any":
            subject = stack.build(workload, 1)
            for times in subject.sizes:
                step = subject.step_of(times)
                assert step.workload.sequences * step.workload.seq_len == subject.workload.tokens, name


def test_a_wrong_loss_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = head_loss.fused_linear_cross_entropy
    monkeypatch.setattr(head_loss, "fused_linear_cross_entropy", lambda *a: 1.01 * fused(*a))
    with pytest.raises(WrongResult, match="gradients"):
        checked(subject_of("factorial.fused"))


def test_batches_that_are_loaded_ahead_are_the_same_and_leave_no_process() -> None:
    before = {one.pid for one in psutil.Process().children()}
    ours, theirs = (UpdateLoader(subject_of(one)) for one in ("factorial.ahead", "baseline"))
    for _ in range(3):
        for one, other in zip(ours.take(), theirs.take(), strict=True):
            assert torch.equal(one, other)
        ours.finish()
    stop_worker()
    assert {one.pid for one in psutil.Process().children()} <= before


def test_memory_that_is_saved_becomes_a_larger_micro_batch_and_no_more() -> None:
    alone = checked(subject_of("factorial.batch", **LONG))
    assert list(alone.tried) == [alone.times] == [1]  # twice the sequences would take more
    twice_B = 2 * alone.tried[1] - gradients_B(alone.subject)
    assert twice_B > baseline_updates(baseline_of(alone.subject)).peak_B
    grown = checked(subject_of("factorial.flash_batch", **LONG))
    fixed_B = gradients_B(grown.subject)
    assert grown.times > 1
    assert grown.peak_B == grown.tried[grown.times] <= alone.peak_B
    assert grown.peak_B == pytest.approx(grown.times * (grown.tried[1] - fixed_B) + fixed_B, rel=0.05)
    assert stack.conditions(grown)["micro_batch_size"] == str(grown.times)
    stack.close(grown)


def test_the_flop_are_those_of_the_products() -> None:
    workload = subject_of("baseline").workload
    h, f, v = workload.hidden_size, workload.intermediate_size, workload.vocab_size
    matrices = workload.num_hidden_layers * (4 * h * h + 3 * h * f) + v * h
    scores = 6 * workload.num_hidden_layers * h * workload.seq_len**2
    assert workload.flop == 6 * matrices * workload.tokens + scores * workload.sequences
