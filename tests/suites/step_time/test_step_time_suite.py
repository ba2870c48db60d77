"""The step_time suite: scores by hand, pairs that differ by one switch, fits that leave steps out."""

from collections import defaultdict

import pytest
from msgspec.structs import replace

from harness.config.code_fingerprint import ROOT
from harness.sweep.store import read_records
from suites.published import step_time
from suites.published.step_time import PREDICTORS, SWITCHES, of_ratios, pairs_of, per_token_s
from suites.training.step_time.published.rows import Outcome, PublishedRun, question
from suites.training.step_time.published.steps import published, with_and_without_attention
from suites.training.step_time.questions import question_of_row

SWITCH = {one.name: one for one in SWITCHES}


def step(name, seconds, **fields):
    """Return a made-up step of 8 GPUs, 8 sequences."""
    run = PublishedRun(
        id=name, kind="pretrain", source="playbook", page="https://example.org", framework="nanotron",
        model="1 B", device="h100_80gb", gpus=8, seq_len=100, global_batch_size=8, precision="bf16",
        dp=8, tp=1, pp=1, sharding="zero1", micro_batch_size=1,
        outcome=Outcome(runs=seconds is not None, step_s=seconds),
    )  # fmt: skip
    return replace(run, **fields)


STEPS = [step("a", 2.0), step("b", 4.0, micro_batch_size=2), step("c", None, micro_batch_size=4)]


def listed(values):
    found = defaultdict(list)
    for metric, value in values:
        found[metric].append(value)
    return found


def scores(said, steps=STEPS):
    return listed(step_time.values(steps, said))


def test_scores_are_those_by_hand():
    said = {
        "a": {"step_s": 2.2, "step_s_low": 2.1, "step_s_high": 2.3, "fits": True},
        "b": {"step_s": 3.0, "step_s_low": 2.0, "step_s_high": 5.0, "fits": False},
        "c": {"step_s": 9.0, "fits": True},
    }
    found = scores(said)
    assert found["relative_error"] == pytest.approx([0.1, -0.25])
    assert found["inside_interval"] == [0.0, 1.0]
    assert found["interval_half_width"] == pytest.approx([0.1 / 2.2, 0.5])
    assert found["ran_and_fits"] == [1.0, 0.0]
    assert (found["fits_rightly"], found["said_to_fit_and_failed"]) == ([1.0, 0.0, 0.0], [1])
    assert found["sign_rightly/micro_batch"] == [1.0]
    assert scores({"a": {"step_s": 3.0}, "b": {"step_s": 3.0}})["sign_rightly/micro_batch"] == [0.0]
    unknown = scores({"a": {"step_s": 2.0}, "b": {"step_s": None}})
    assert (unknown["steps_predicted"], unknown["steps_not_known"]) == ([1], [1])
    assert scores({}) == {}


def test_a_choice_that_does_not_run_is_worth_nothing():
    cell = [step("a", 2.0), step("b", None), step("c", 1.0), step("another", 0.1, gpus=16)]
    for index, share in ((0, 0.5), (1, 0.0)):
        assert scores({"choice/a": {"index": index}}, cell)["chosen_over_best"] == [share]


def pairs(name, *steps):
    return [(one.slower.id, one.faster.id, one.gain) for one in pairs_of(steps, SWITCH[name])]


A, B = step("a", 3.0), step("b", 2.0, precision="FP8")
BLACKWELL = step("e", 0.6, device="gb200", gpus_per_node=4, dp=4, tp=2)


def test_a_pair_differs_in_its_switch_alone_and_both_steps_ran():
    longer = step("c", 1.0, precision="FP8", seq_len=200)
    failed = step("d", None, precision="FP4")
    assert pairs("precision", A, B, longer, failed) == pairs("precision", B, A) == [("a", "b", 1.5)]
    assert pairs("precision", A, step("b", 2.0)) == []
    assert pairs("precision", A, replace(B, source="another")) == []


def test_another_gpu_comes_with_its_own_layout_and_more_gpus_are_compared_per_token():
    assert pairs("gpu", A, BLACKWELL) == [("a", "e", pytest.approx(5.0))]
    assert pairs("gpu", A, step("g", 2.5, device="h100_80gb_500w")) == []  # of the same generation
    few = step("a", 3.0, global_batch_size=16, gradient_accumulation_steps=2)
    spread = step("f", 1.8, global_batch_size=16, gpus=16, dp=16, gradient_accumulation_steps=1)
    assert per_token_s(spread) == pytest.approx(1.8 * 16 / 1600)
    assert pairs("gpus", few, spread) == [("f", "a", pytest.approx(1.8 * 2 / 3))]


def test_the_error_is_that_of_the_gain():
    said = {"a": {"step_s": 3.3}, "b": {"step_s": 2.0}, "e": {"step_s": 0.66}}
    assert listed(of_ratios([A, B, BLACKWELL], said)) == {
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
    steps = with_and_without_attention()
    found = list(pairs_of(steps, SWITCH["attention"]))
    gains = [196 / 142, 220 / 72, 205 / 149, 225 / 80]
    assert [one.gain for one in found] == pytest.approx(gains, 1e-4)
    said = PREDICTORS["model"](steps)
    assert all(abs((one.predicted(said) or 0.0) / one.gain - 1) < 0.10 for one in found)
    assert all(0.9 < said[one.id]["step_s"] / one.step_s < 1.1 for one in steps)


def test_parameters_are_those_of_the_published_models():
    """LLM Foundry, whose models are the tied ones, counts learned positions, too."""
    dense = [one for one in published() if one.parameters_B]
    assert len(dense) > 100
    for one in dense:
        model = question_of_row(question(one)).config or {}
        positions = one.seq_len * model["hidden_size"] if model["tie_word_embeddings"] else 0
        ours = step_time.parameters_of(model) + positions
        assert ours == pytest.approx(1e9 * one.parameters_B, rel=0.005), one.id


def test_committed_values_are_calculated_again_and_an_unknown_source_is_refused():
    for record in read_records(ROOT / "results/reference/step_time"):
        workload = record.cell.config["workload"]
        if len(workload["sources"]) > 1:  # those of several sources take seconds
            continue
        now = defaultdict(list)
        for one in step_time.sample(step_time.build(workload, 1)):
            now[one.metric, one.method].append(one.value)
        kept = {(one.metric, one.method): list(one.samples) for one in record.measurements}
        assert now.keys() == kept.keys()
        for key, values in kept.items():
            assert now[key] == pytest.approx(values, rel=1e-9), (record.cell.workload, key)
    with pytest.raises(ValueError, match=r"sources='nobody'.*known are"):
        step_time.build({"sources": ["nobody"]}, 1)
