"""Causes of a slower step against the same question asked with them; the nearest published steps."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harness.ask.lines import PARTS
from harness.question import Question, question_of
from suites.training import seconds_engine
from suites.training.step_time.causes import PLACES

LLAMA_70B = {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
             "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
             "tie_word_embeddings": False}  # fmt: skip
ASKED = question_of(
    config=LLAMA_70B, devices=256, seq_len=8192, global_batch_size=512, program="megatron", zero=1,
    sequence_parallel=True, tp=4, pp=4, cp=2, virtual_stages=5,
)  # fmt: skip


def causes(question: Question) -> dict[tuple[str, str], float]:
    return {(one.family, one.title): one.step_s for one in seconds_engine.answer(question).seconds.causes}


def seconds(question: Question) -> float:
    return seconds_engine.answer(question).layouts[0].step_s.likely


ANSWER = seconds_engine.answer(ASKED)
OF = causes(ASKED)


@pytest.mark.parametrize(
    ("cause", "fields"),
    [
        (("network", "a network 4 times slower than its name"), {"network_B_per_s": 12.5e9}),
        (("recompute", "full recompute"), {"recompute": "full"}),
        (("batch", "2 times as many tokens per step"), {"global_batch_size": 1024}),
    ],
    ids=str,
)
def test_a_cause_is_what_the_same_question_with_it_predicts(cause, fields):
    assert OF[cause] == pytest.approx(seconds(replace(ASKED, **fields)))
    assert OF[cause] > seconds(ASKED)


def test_waiting_adds_to_the_step():
    own = seconds(ASKED)
    assert OF["loader", "a loader for which the step waits 20% longer"] == pytest.approx(1.2 * own)
    parts = ("matmul", "attention", "pointwise", "head", "update")
    computing = sum(ANSWER.seconds.parts_s[name] for name in parts)
    slow = OF["imbalance", "one GPU that computes 50% longer, for which all wait"]
    assert slow == pytest.approx(own + computing / 2)
    assert own < OF["overlap", "tensor-parallel communication that nothing overlaps"]


def test_the_nearest_published_step_is_the_one_that_was_asked():
    """70 B on 256 H100 in bf16 takes 14.72 s by NVIDIA/dgxc-benchmarking; FLOP by hand."""
    (step,) = (one for one in ANSWER.seconds.nearest if one.published_s == 14.72)
    assert "70B on 256 × h100_80gb" in step.title
    layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    per_token = 6 * (80 * layer + 128256 * 8192) + 12 * 80 * 8192 * 8192
    assert step.FLOP_per_device == pytest.approx(per_token * 512 * 8192 / 256, rel=1e-4)  # norms count, too
    assert step.predicted_s == pytest.approx(seconds(ASKED))


def test_every_part_of_a_step_has_words_and_a_place():
    parts, placed = ANSWER.seconds.parts_s.keys(), {name for names in PLACES.values() for name in names}
    assert parts <= PARTS.keys()
    assert parts - placed == {"rest"}
