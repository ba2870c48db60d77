"""The layouts suite: one layout, every layout, changes, offload; each against the account's own parts."""

from dataclasses import replace

import pytest

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.records import Reading, Unavailable
from suites.seconds import layouts
from suites.seconds.layouts import built
from suites.seconds.workload import LayoutsWorkload
from suites.training.layouts.account import worst_peak
from suites.training.layouts.room import FRAGMENTED

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
ONE = LayoutsWorkload(hf_config=LLAMA, gpus=16, seq_len=8192, tp=2, pp=2)


def readings(workload):
    found = layouts.sample(built(workload))
    return {(one.metric, one.method): one.value for one in found if isinstance(one, Reading)}


def by_account(workload):
    return {metric: value for (metric, method), value in readings(workload).items() if method == "account"}


def test_a_layout_fits_where_its_worst_rank_does_with_fragmentation():
    subject, of = built(ONE).checked, by_account(ONE)
    worst_B = float(worst_peak(subject.shape, subject.layout, subject.training).total_B[0])
    assert of["peak_memory"] == worst_B
    assert of["needed_memory"] == pytest.approx(FRAGMENTED * worst_B)
    parts = ("states", "activations", "logits", "communication", "workspaces")
    assert sum(of[f"peak_memory/{part}"] for part in parts) == pytest.approx(worst_B)
    assert worst_B == max(of["first_stage/peak_memory"], of["last_stage/peak_memory"])
    for fields in ({}, {"recompute": "full"}, {"zero": 0}):
        largest = int(by_account(replace(ONE, **fields))["largest_micro_batch"])
        for size, fit in ((largest, 1.0), (largest + 1, 0.0)):
            assert not size or by_account(replace(ONE, micro_batch_size=size, **fields))["fits"] == fit


def test_a_search_finds_the_layouts_that_a_question_about_each_confirms():
    of = readings(replace(ONE, search=True, tp=1, pp=1, global_batch_size=64))
    titles = [method for metric, method in of if metric == "margin"]
    assert 3 < len(titles) <= of["layouts_that_fit", "account"] < of["layouts_tried", "account"]
    margins = [of["margin", method] for method in titles if "recompute" not in method]
    assert margins == sorted(margins, reverse=True)
    title = next(one for one in titles if one.startswith("dp 4 × tp 4") and "recompute" not in one)
    alone = replace(ONE, tp=4, pp=1, zero=int("ZeRO-1" in title), global_batch_size=64)
    assert of["largest_micro_batch", title] == by_account(alone)["largest_micro_batch"]


def test_offloaded_states_are_on_the_host():
    on = replace(ONE, program="deepspeed", zero=3, pp=1, tp=1)
    off, parameters = by_account(replace(on, offload="parameters")), readings(on)["parameters", ""]
    assert off["peak_memory/states"] < by_account(on)["peak_memory/states"] / 4
    assert off["host_memory"] == pytest.approx(20 * parameters / 16, rel=0.01)
    assert off["host_memory/reserved"] >= off["host_memory"]


REFUSED = [
    ({"tp": 3}, r"tp × pp × cp = 3 × 2 × 1 = 6 does not divide the 16 GPUs"),
    (
        {"tp": 16, "pp": 1, "program": "torchtitan"},
        "tp=16 does not divide num_key_value_heads=8; allowed: 1, 2, 4",
    ),
    ({"global_batch_size": 30}, r"global_batch_size=30 is no multiple of dp × micro_batch_size = 4 × 1"),
    ({"ep": 2}, "ep=2: the model has no experts"),
    ({"offload": "optimizer"}, "zero=1: offload=optimizer needs deepspeed"),
    ({"hf_config": {"model_type": "mamba"}}, "model_type 'mamba': layouts are answered for"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=str)
def test_what_does_not_divide_is_refused_with_what_would(fields, message):
    with pytest.raises(Unavailable, match=message) as refused:
        built(replace(ONE, **fields))
    assert "\n" not in str(refused.value)
