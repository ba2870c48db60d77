"""Answers to a handful of published steps, and to made-up questions that have one right answer.

Facts: llm-foundry, commit 300cc5c5, scripts/train/benchmarking/README.md, line 76 and below; MLPerf
training 4.1.
"""

import json

import pytest

from suites.training.step_time.questions import answers, main

MPT_70B = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 32768,
    "vocab_size": 50368,
    "tie_word_embeddings": True,
    "mlp": "gelu",
}
MPT_3B = MPT_70B | {
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "intermediate_size": 10240,
}
GPT_3 = MPT_70B | {
    "hidden_size": 12288,
    "num_hidden_layers": 96,
    "num_attention_heads": 96,
    "intermediate_size": 49152,
    "vocab_size": 51200,
}


def step(model, device, gpus, seq_len, batch, framework, **layout):
    return {
        "id": "one",
        "kind": "step",
        "model": model,
        "device": device,
        "gpus": gpus,
        "gpus_per_node": 8,
        "seq_len": seq_len,
        "global_batch_size": batch,
        "precision": "bf16",
        "framework": framework,
        "layout": layout,
    }


PUBLISHED = [
    (
        step(
            MPT_70B,
            "a100_80gb",
            64,
            2048,
            2048,
            "Composer + FSDP",
            dp=64,
            sharding="FULL_SHARD",
            micro_batch_size=8,
            recompute="full",
        )
        | {"notes": "attention flash (triton)"},
        159.8439,
    ),
    (
        step(
            MPT_3B,
            "a100_80gb",
            8,
            2048,
            480,
            "Composer + FSDP",
            dp=8,
            sharding="FULL_SHARD",
            micro_batch_size=10,
            recompute="none",
        )
        | {"notes": "attention flash (triton)"},
        11.811977,
    ),
    (
        step(
            GPT_3,
            "h100_80gb",
            512,
            2048,
            2048,
            "NeMo Megatron",
            tp=4,
            pp=8,
            virtual_stages=6,
            micro_batch_size=2,
        )
        | {"source": "mlperf gpt3"},
        9.540333,
    ),
]


@pytest.mark.parametrize(("question", "published_s"), PUBLISHED)
def test_published_steps_lie_in_the_interval(question, published_s):
    said = answers([question])[0]
    assert said["step_s_low"] < published_s < said["step_s_high"]
    assert said["step_s"] == pytest.approx(published_s, rel=0.15)


def test_a_step_twice_as_large_takes_twice_as_long():
    question = PUBLISHED[0][0]
    one, two = answers([question, question | {"global_batch_size": 4096}])
    assert two["step_s"] == pytest.approx(2 * one["step_s"], rel=0.02)


def choice(*layouts):
    asked = step(GPT_3, "h100_80gb", 128, 2048, 256, "NeMo")
    rows = [{"index": 10 + at, "micro_batch_size": 1, **row} for at, row in enumerate(layouts)]
    return {**asked, "kind": "choose", "among": rows}


def test_the_fastest_layout_that_fits_is_chosen():
    whole = {"dp": 128, "sharding": "zero0"}  # 175 B parameters on each GPU
    divided = {"dp": 4, "tp": 8, "pp": 4, "sharding": "zero1", "virtual_stages": 4}
    again = {**divided, "recompute": "full"}
    assert answers([choice(whole, again, divided)])[0]["index"] == 12


def test_a_device_like_no_other_is_answered_by_not_known():
    said = answers([PUBLISHED[0][0] | {"device": "tpu_v5p"}])
    assert said == [{"id": "one", "step_s": None}]


def test_a_file_of_questions_is_answered(tmp_path):
    asked, out = tmp_path / "questions.jsonl", tmp_path / "out.jsonl"
    asked.write_text("".join(json.dumps(one) + "\n" for one, _ in PUBLISHED))
    main([f"questions={asked}", f"out={out}"])
    assert len(out.read_text().splitlines()) == len(PUBLISHED)
