"""The engines of bytes and seconds: what they take from a question, refuse, and leave out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.question import Question, question_of
from harness.records import Unavailable
from suites.training import account_engine, seconds_engine
from suites.training.layouts.account import worst_peak
from suites.training.layouts.room import FRAGMENTED
from suites.training.of_question import subject_of
from suites.training.step_time.prediction import RETRIES_COST

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
PLAIN = question_of(
    config=LLAMA, devices=16, seq_len=4096, tp=2, pp=2, zero=1, program="megatron", sequence_parallel=True
)


def asked(**fields: Any) -> Question:
    return msgspec.structs.replace(PLAIN, **fields)


def peak_B(question: Question) -> float:
    return account_engine.answer(question).memory.allocated_B.likely


def test_bytes_are_those_of_the_worst_rank_and_fragmentation_decides():
    subject, answer = subject_of(PLAIN), account_engine.answer(PLAIN)
    worst_B = float(worst_peak(subject.shape, subject.layout, subject.training).total_B[0])
    memory, layout = answer.memory, answer.layouts[0]
    assert memory.allocated_B == (worst_B, worst_B, worst_B)
    assert memory.reserved_B.likely == layout.needed_B == pytest.approx(FRAGMENTED * worst_B)
    assert sum(memory.parts_B.values()) == pytest.approx(worst_B)
    assert memory.room_B == pytest.approx(memory.usable_B - sum(memory.outside_B.values()))
    assert (answer.verdict, layout.fits) == ("fits", True)
    full = account_engine.answer(asked(memory_B=layout.needed_B))
    assert full.verdict == "does not fit"
    assert any(change.fits for change in full.changes)


MOE = {"config": MIXTRAL, "ep": 2}


@pytest.mark.parametrize(
    ("fields", "changed", "lower"),
    [
        ({}, {"gradients": "bf16"}, True),
        ({}, {"master_remainders": True}, True),
        ({}, {"attention": "explicit"}, False),
        ({}, {"layers_of_stages": (12, 20)}, False),
        ({}, {"precision": "fp8"}, False),
        ({}, {"sequence_parallel": False}, False),
        (MOE, {"grouped_experts": False}, True),
        ({"precision": "fp8"}, {"fp8_parameters": True}, True),
    ],
    ids=str,
)
def test_every_field_of_the_recipe_reaches_the_account(fields, changed, lower):
    before_B, after_B = peak_B(asked(**fields)), peak_B(asked(**fields, **changed))
    assert after_B < before_B if lower else after_B > before_B


def test_replicas_shard_over_as_many_ranks_as_one_has():
    sharded = asked(tp=1, pp=1, zero=3, program="torchtitan", replicas=4)
    same = msgspec.structs.replace(sharded, replicas=1, shard_size=4)
    assert account_engine.answer(sharded).layouts == account_engine.answer(same).layouts


def test_accumulation_gives_the_batch_of_seconds_and_leaves_that_of_bytes_open():
    accumulated = asked(pp=1, gradient_accumulation_steps=2)
    given = asked(pp=1, global_batch_size=16)
    seconds = seconds_engine.answer(accumulated)
    assert seconds.layouts[0].step_s == seconds_engine.answer(given).layouts[0].step_s
    open_, bounded = (account_engine.answer(one).memory for one in (accumulated, given))
    assert bounded.largest_micro_batch == 2 <= (open_.largest_micro_batch or 0)


def test_seconds_of_a_search_begin_with_the_fastest_that_fits():
    answer = seconds_engine.answer(asked(search=True, tp=1, pp=1, global_batch_size=64))
    rates = [one.tokens_per_s_per_device or 0.0 for one in answer.layouts]
    assert all(one.fits for one in answer.layouts)
    assert rates[0] * RETRIES_COST >= max(rates)
    assert answer.layouts_that_fit == len(answer.layouts)
    first = answer.layouts[0]
    assert first.step_s.low < first.step_s.likely < first.step_s.high
    parts = {name: first.parts[name] for name in ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch_size")}
    recompute = ("none", "selective", "full")[first.parts["recompute"]]
    vp = first.parts["virtual_stages"]
    alone = asked(**parts, virtual_stages=vp, recompute=recompute, global_batch_size=64)
    assert seconds_engine.answer(alone).layouts[0].step_s == first.step_s


@pytest.mark.parametrize(
    ("engine", "fields", "named"),
    [
        (account_engine, {"optimizer": "adafactor"}, "optimizer adafactor"),
        (account_engine, {"precision": "nvfp4"}, "precision=nvfp4"),
        (account_engine, {"device": "nobody"}, "device=nobody"),
        (account_engine, {"tp": 3}, "does not divide the 16 GPUs"),
        (account_engine, {"dp": 2}, "devices=16 leaves 4"),
        (seconds_engine, {"device": "gpu_80gb"}, "device=gpu_80gb"),
        (seconds_engine, {"offload": ("optimizer",)}, "offload=optimizer needs .*, not megatron"),
    ],
    ids=str,
)
def test_what_is_refused_is_named(engine: Any, fields: dict[str, Any], named: str):
    with pytest.raises(Unavailable, match=named):
        engine.answer(question_of(**{**msgspec.structs.asdict(PLAIN), **fields}))
