"""The layouts suite: one layout, every layout, changes, offload; each against the account's own parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.question import Question
from harness.records import Reading, Unavailable
from suites.seconds import layouts
from suites.seconds.layouts import built, question
from suites.seconds.workload import LayoutsWorkload
from suites.training import seconds_engine
from suites.training.account_engine import possible
from suites.training.layouts.account import worst_peak
from suites.training.layouts.room import FRAGMENTED
from suites.training.step_time.questions import answers

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
ONE = LayoutsWorkload(hf_config=LLAMA, gpus=16, seq_len=8192, tp=2, pp=2)


def readings(workload: LayoutsWorkload) -> dict[tuple[str, str], float]:
    found = layouts.sample(built(workload))
    return {(one.metric, one.method): one.value for one in found if isinstance(one, Reading)}


def test_a_layout_fits_where_its_worst_rank_does_with_fragmentation():
    subject = built(ONE).checked
    of = readings(ONE)
    worst_B = float(worst_peak(subject.shape, subject.layout, subject.training).total_B[0])
    assert of["peak_memory", "account"] == worst_B
    assert of["needed_memory", "account"] == pytest.approx(FRAGMENTED * worst_B)
    parts = ("states", "activations", "logits", "communication", "workspaces")
    assert sum(of[f"peak_memory/{part}", "account"] for part in parts) == pytest.approx(worst_B)
    assert worst_B == max(of["first_stage/peak_memory", "account"], of["last_stage/peak_memory", "account"])


@pytest.mark.parametrize("fields", [{}, {"recompute": "full"}, {"zero": 0}], ids=str)
def test_the_largest_micro_batch_fits_and_one_more_does_not(fields: dict[str, Any]):
    workload = replace(ONE, **fields)
    largest = int(readings(workload)["largest_micro_batch", "account"])
    for size, fit in ((largest, 1.0), (largest + 1, 0.0)):
        if size:
            assert readings(replace(workload, micro_batch_size=size))["fits", "account"] == fit


def test_a_search_finds_the_layouts_that_a_question_about_each_confirms():
    searched = replace(ONE, search=True, tp=1, pp=1, global_batch_size=64)
    of = readings(searched)
    titles = [method for metric, method in of if metric == "margin"]
    assert 3 < len(titles) <= of["layouts_that_fit", "account"] < of["layouts_tried", "account"]
    margins = [of["margin", method] for method in titles if "recompute" not in method]
    assert margins == sorted(margins, reverse=True)
    title = next(one for one in titles if one.startswith("dp 4 × tp 4") and "recompute" not in one)
    alone = replace(ONE, tp=4, pp=1, zero=int("ZeRO-1" in title), global_batch_size=64)
    assert of["largest_micro_batch", title] == readings(alone)["largest_micro_batch", "account"]


def test_experts_spread_over_more_ranks_take_less_and_routing_gives_a_range():
    together, spread = (replace(ONE, hf_config=MIXTRAL, ep=ep, pp=1, seq_len=2048) for ep in (1, 8))
    assert readings(spread)["peak_memory", "account"] < readings(together)["peak_memory", "account"]
    of = readings(spread)
    assert of["even_routing/peak_memory", "account"] < of["peak_memory", "account"]
    assert of["uneven_routing/peak_memory", "account"] > of["peak_memory", "account"]


def test_offloaded_states_are_on_the_host():
    on = replace(ONE, program="deepspeed", zero=3, pp=1, tp=1)
    off = replace(on, offload="parameters")
    assert readings(off)["peak_memory/states", "account"] < readings(on)["peak_memory/states", "account"] / 4
    parameters = readings(on)["parameters", ""]
    assert readings(off)["host_memory", "account"] == pytest.approx(20 * parameters / 16, rel=0.01)
    assert readings(off)["host_memory/reserved", "account"] >= readings(off)["host_memory", "account"]


def test_every_change_that_is_offered_changes_something():
    workload = replace(ONE, zero=0, micro_batch_size=2)
    question = built(workload).checked.question
    offered = list(possible(built(workload).checked))
    assert offered[0][0] == "ZeRO-1"
    for _, fields in offered:
        assert msgspec.structs.replace(question, **fields) != question
    tried = {method for metric, method in readings(workload) if metric == "with_change/fits"}
    assert {"ZeRO-1", "micro-batch 1", "full recompute", "tp 4", "pp 4", "32 GPUs"} <= tried
    assert "ep 2" not in tried


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tp": 3}, r"tp × pp × cp = 3 × 2 × 1 = 6 does not divide the 16 GPUs"),
        ({"tp": 16, "pp": 1}, "tp=16 does not divide num_key_value_heads=8; allowed: 1, 2, 4, 8"),
        ({"pp": 8, "tp": 1, "gpus": 24, "virtual_stages": 3}, "virtual_stages=3 does not divide the 4 layer"),
        ({"global_batch_size": 30}, r"global_batch_size=30 is no multiple of dp × micro_batch_size = 4 × 1"),
        ({"ep": 2}, "ep=2: the model has no experts"),
        ({"zero": 2}, "zero=2: megatron has stages 0 to 1"),
        ({"offload": "optimizer"}, "zero=1: offload=optimizer needs deepspeed"),
        ({"hf_config": {"model_type": "mamba"}}, "model_type 'mamba': layouts are answered for"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_divide_is_refused_with_what_would(fields: dict[str, Any], message: str):
    with pytest.raises(Unavailable, match=message) as refused:
        built(replace(ONE, **fields))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) <= 300


EXPLICIT = "FlashAttention → explicit attention"


def switches(question: Question) -> tuple[dict[str, float], set[str]]:
    """Return what switches cost, and those that do not fit."""
    seconds = seconds_engine.answer(question).seconds
    assert seconds is not None
    return seconds.switches, set(seconds.switches_that_do_not_fit)


def test_explicit_attention_is_a_switch_of_layouts_without_context_parallelism():
    """Its cost is that of the same step as a question; at 8,192 tokens its scores fit recomputed alone."""
    workload = structs.replace(question(ONE), global_batch_size=64, device="h100_80gb")
    costs, without = switches(workload)
    assert EXPLICIT in without
    asked = {
        "id": "one", "kind": "step", "framework": "NeMo", "model": LLAMA, "device": "h100_80gb", "gpus": 16,
        "seq_len": 8192, "global_batch_size": 64, "precision": "bf16",
        "layout": {"dp": 4, "tp": 2, "pp": 2, "virtual_stages": 1, "recompute": "none"},
    }  # fmt: skip
    again = {**asked, "attention": "explicit", "layout": {**asked["layout"], "recompute": "selective"}}
    fused_s, again_s = (one["step_s"] for one in answers([asked, again]))
    assert costs[f"{EXPLICIT}, scores recomputed"] == pytest.approx(again_s / fused_s)
    short, _ = switches(structs.replace(workload, seq_len=2048))
    assert 1 < short[EXPLICIT] < short[f"{EXPLICIT}, scores recomputed"] < again_s / fused_s
    costs, without = switches(structs.replace(workload, cp=2))
    assert not [one for one in (*costs, *without) if one.startswith(EXPLICIT)]
