"""Published ladders: gains of their steps, and what the answers' file says of them."""

from __future__ import annotations

from typing import Any

import pytest

from harness.config.run import load
from harness.records import Origin, WrongResult
from suites.stack import stack_published
from suites.stack.stack_published import Subject

RUN = load(["suite=stack_published"])[0]
LADDERS = [name for name, one in RUN.workloads.items() if one["kind"] == "ladder"]


def values_of(workload: str, **changes: Any) -> dict[tuple[str, str], float]:
    subject = stack_published.build({**RUN.workloads[workload], **changes}, 0)
    stack_published.check(subject)
    readings = list(stack_published.sample(subject))
    assert {one.origin for one in readings} == {Origin.PUBLISHED}
    return {(one.metric, one.method): one.value for one in readings}


def test_a_rate_gains_where_it_rises_and_a_time_where_it_falls() -> None:
    assert len(LADDERS) >= 10
    assert all(RUN.workloads[name]["source"] for name in LADDERS)
    rates = values_of("rasbt_gpt2")
    assert rates["gain", "Tensor cores (TF32)"] == pytest.approx(27648 / 12526)
    assert rates["whole_gain", ""] == pytest.approx(142156 / 12525)
    times = values_of("pytorch_nanogpt")
    assert times["gain", "SDPA with FlashAttention"] == pytest.approx(143 / 113)
    assert times["whole_gain", ""] == pytest.approx(143 / 87)


def test_the_best_state_may_come_before_the_last() -> None:
    values = values_of("torchtune_llama_3b")
    assert values["best_gain", ""] == pytest.approx(9174 / 2091)
    assert values["whole_gain", ""] == pytest.approx(6960 / 2091)
    assert values["share_slower", ""] == pytest.approx(3 / 7)


def test_all_ladders_together_have_the_steps_of_each() -> None:
    for every, work in (("all_same_work", "same"), ("all_to_a_result", "to a result")):
        own = {name for name in LADDERS if RUN.workloads[name]["work"] == work}
        assert set(RUN.workloads[every]["ladders"]) == own
        assert values_of(every)["steps", ""] == sum(values_of(name)["steps", ""] for name in own)


def test_steps_that_do_not_multiply_to_the_ends_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = stack_published.build(RUN.workloads["rasbt_gpt2"], 0)
    monkeypatch.setattr(Subject, "gains", {"Tensor cores (TF32)": 2.0})
    with pytest.raises(WrongResult, match="multiply"):
        stack_published.check(subject)
