"""Pairs of published steps that differ by one switch: which there are, and how far off their ratios are."""

from __future__ import annotations

import pytest

from suites.published.step_time import SWITCHES, SwitchedFields, of_ratios, pairs_of, per_token_s
from suites.training.step_time.published.steps import published, with_and_without_attention
from suites.training.step_time.published.typed import network_B_per_s
from suites.training.step_time.questions import answers

SWITCH = {one.name: one for one in SWITCHES}


def step(name: str, seconds: float | None, **fields: object) -> dict[str, object]:
    """Return a made-up step of 8 GPUs, 16 sequences of 100 tokens."""
    layout = {"dp": 8, "tp": 1, "pp": 1, "micro_batch_size": 1, "gradient_accumulation_steps": 2}
    return {
        "id": name, "kind": "step", "source": "made up", "model": {"hidden_size": 8}, "device": "h100_80gb",
        "gpus": 8, "seq_len": 100, "global_batch_size": 16, "precision": "bf16",
        "published": {"step_s": seconds}, "layout": layout,
    } | fields  # fmt: skip


A = step("a", 3.0)
B = step("b", 2.0, precision="FP8")
OTHER_TOO = step("c", 1.0, precision="FP8", seq_len=200)
FAILED = step("d", None, precision="FP4")
BLACKWELL = step("e", 1.2, device="gb200", gpus_per_node=4, layout={"dp": 4, "tp": 2, "pp": 1})
SPREAD = step("f", 1.8, gpus=16, layout={**A["layout"], "dp": 16, "gradient_accumulation_steps": 1})  # type: ignore[dict-item]


def found(name: str, *steps: dict[str, object]) -> list[tuple[object, object, float]]:
    return [(one.slower["id"], one.faster["id"], one.gain) for one in pairs_of(steps, SWITCH[name])]


def test_a_pair_differs_in_its_switch_alone_and_both_steps_ran():
    assert found("precision", A, B, OTHER_TOO, FAILED) == [("a", "b", 1.5)]
    assert found("precision", B, A) == [("a", "b", 1.5)]
    assert found("precision", A, step("b", 2.0)) == []
    elsewhere = step("b", 2.0, precision="FP8", source="another")
    assert found("precision", A, elsewhere) == []


def test_another_gpu_comes_with_its_own_layout_and_more_gpus_are_compared_per_token():
    assert found("gpu", A, BLACKWELL) == [("a", "e", pytest.approx(2.5))]
    assert found("gpu", A, step("g", 2.5, device="h100_80gb_500w")) == []  # of the same generation
    assert per_token_s(SPREAD) == pytest.approx(1.8 * 16 / 1600)
    assert found("gpus", A, SPREAD) == [("f", "a", pytest.approx(1.8 * 2 / 3))]


def test_the_error_is_that_of_the_gain():
    said = {"a": {"step_s": 3.3}, "b": {"step_s": 2.0}, "e": {"step_s": 1.32}}
    by_name: dict[str, list[float]] = {}
    for metric, value in of_ratios([A, B, BLACKWELL], said):
        by_name.setdefault(metric, []).append(value)
    assert by_name == {
        "ratio_error/precision": [pytest.approx(1.65 / 1.5 - 1)],
        "absolute_ratio_error/precision": [pytest.approx(0.1)],
        "ratio_pairs/precision": [1],
        "ratio_error/gpu": [pytest.approx(0.0)],
        "absolute_ratio_error/gpu": [pytest.approx(0.0)],
        "ratio_pairs/gpu": [1],
    }
    assert list(of_ratios([A, B], {"a": {"step_s": 3.0}})) == []


def test_pairs_with_and_without_flash_attention_gain_what_the_paper_says():
    """arXiv 2307.08691, table 1: TFLOP/s per GPU without FlashAttention, and with FlashAttention-2."""
    rates = [(142, 196), (72, 220), (149, 205), (80, 225)]
    steps = with_and_without_attention()
    pairs = list(pairs_of(steps, SWITCH["attention"]))
    assert [one.gain for one in pairs] == pytest.approx([fused / without for without, fused in rates], 1e-4)
    said = {one["id"]: one for one in answers(steps)}
    assert all(abs((one.predicted(said) or 0.0) / one.gain - 1) < 0.10 for one in pairs)
    assert all(0.9 < said[one["id"]]["step_s"] / one["published"]["step_s"] < 1.1 for one in steps)
    assert not {one["id"] for one in steps} & {one["id"] for one in published()}


def test_no_two_published_steps_differ_in_the_link_alone():
    """Where there are such pairs, their error belongs on record: see conf/answers.yaml, methods."""
    pairs = list(pairs_of(published(), SwitchedFields("link", "network", ())))
    rates = [{network_B_per_s(one, "hopper", 8) for one in pair} for pair in pairs]
    assert all(len(one) == 1 for one in rates)  # other words for the same rate
