"""The step_time suite: scores by hand, rules, predictions on file, fits that leave steps out."""

from __future__ import annotations

import math

import pytest

from harness.config.code_fingerprint import ROOT
from harness.sweep.store import read_records
from suites.published import leave_out, step_time
from suites.published.step_time import PREDICTORS, on_file, steps_of
from suites.training.step_time.constants import StepConstants
from suites.training.step_time.published.steps import published, ran
from suites.training.step_time.published.typed import typed_step


def step(name, seconds, **layout):
    of = {"dp": 8, "tp": 1, "pp": 1, "sharding": "zero1", "micro_batch_size": 1} | layout
    answer = {"runs": seconds is not None, "step_s": seconds}
    return {"id": name, "kind": "step", "source": "playbook", "model": {"hidden_size": 8}, "gpus": 8,
            "device": "h100_80gb", "seq_len": 1, "global_batch_size": 8, "layout": of,
            "published": answer}  # fmt: skip


STEPS = [step("a", 2.0), step("b", 4.0, micro_batch_size=2), step("c", None, micro_batch_size=4)]


def listed(said, steps=STEPS):
    found: dict[str, list[float]] = {}
    for metric, value in step_time.values(steps, said):
        found.setdefault(metric, []).append(value)
    return found


def test_scores_are_those_by_hand():
    said = {
        "a": {"step_s": 2.2, "step_s_low": 2.1, "step_s_high": 2.3, "fits": True},
        "b": {"step_s": 3.0, "step_s_low": 2.0, "step_s_high": 5.0, "fits": False},
        "c": {"step_s": 9.0, "fits": True},
    }
    found = listed(said)
    assert found["relative_error"] == pytest.approx([0.1, -0.25])
    assert found["inside_interval"] == [0.0, 1.0]
    assert found["interval_half_width"] == pytest.approx([0.1 / 2.2, 0.5])
    assert found["ran_and_fits"] == [1.0, 0.0]
    assert (found["fits_rightly"], found["said_to_fit_and_failed"]) == ([1.0, 0.0, 0.0], [1])
    assert found["sign_rightly/micro_batch"] == [1.0]
    assert listed({"a": {"step_s": 3.0}, "b": {"step_s": 3.0}})["sign_rightly/micro_batch"] == [0.0]


def test_what_is_not_known_is_counted_and_not_scored():
    found = listed({"a": {"step_s": 2.0}, "b": {"step_s": None}})
    assert (found["steps_predicted"], found["steps_not_known"]) == ([1], [1])
    assert listed({}) == {}


def test_a_choice_that_does_not_run_is_worth_nothing():
    cell = {"id": "x", "kind": "choose", "source": "playbook", "published": {"tokens_s": [5.0, None, 10.0]}}
    assert listed({"x": {"index": 0}}, [cell])["chosen_over_best"] == [0.5]
    assert listed({"x": {"index": 1}}, [cell])["chosen_over_best"] == [0.0]


def test_parameters_are_those_of_the_published_models():
    """LLM Foundry, whose models are the tied ones, counts learned positions, too."""
    stated = [one for one in published() if one["model"].get("parameters")]
    dense = [one for one in map(typed_step, stated) if not step_time.has_experts(one.questions[0])]
    assert len(dense) > 100
    for one in dense:
        model, seq_len = one.questions[0].config or {}, one.questions[0].seq_len or 0
        positions = seq_len * model["hidden_size"] if model["tie_word_embeddings"] else 0
        ours = step_time.parameters_of(model) + positions
        assert ours == pytest.approx(model["parameters"], rel=0.005), one.id


def test_every_prediction_on_file_is_of_a_published_step():
    known = {one["id"] for one in published()}
    for name in ("calculon.jsonl", "llm_analysis.jsonl", "left_out.jsonl"):
        assert on_file(name), name
        assert set(on_file(name)) <= known, name


def test_groups_leave_every_step_out_once_and_constants_are_those_of_whole_steps():
    used = StepConstants.read()
    for family in leave_out.FAMILIES.values():
        names = leave_out.constants_of(family)
        assert names
        assert all(used[name] > 0 for name in names)
    steps = [one for one in published() if ran(one)]
    for one in steps:
        families = [family for family in leave_out.FAMILIES.values() if leave_out._of(one, *family.words)]
        assert len(families) == (one["source"] not in leave_out.ALIKE), one["id"]
    groups = {leave_out.FAMILIES["megatron"].group(one) for one in steps}
    assert set(leave_out.ALIKE.values()) <= groups


def test_batches_have_the_errors_of_single_steps():
    steps = [one for one in steps_of(["playbook"]) if ran(one)][:12]
    said = PREDICTORS["model"](steps)
    by_hand = [abs(math.log(said[one["id"]]["step_s"] / one["published"]["step_s"])) for one in steps]
    batches = leave_out.batches_of(steps)
    assert leave_out.error(batches, StepConstants.read()) == pytest.approx(sum(by_hand) / len(by_hand))


def test_an_unknown_source_is_refused():
    with pytest.raises(ValueError, match=r"sources='nobody'.*known are"):
        step_time.build({"sources": ["nobody"]}, 1)


def test_committed_values_are_calculated_again():
    records = read_records(ROOT / "results/reference/step_time")
    for record in records:
        workload = record.cell.config["workload"]
        if len(workload["sources"]) > 2:  # those of several sources take seconds
            continue
        now: dict[tuple[str, str], list[float]] = {}
        for one in step_time.sample(step_time.build(workload, 1)):
            now.setdefault((one.metric, one.method), []).append(one.value)
        kept = {(one.metric, one.method): list(one.samples) for one in record.measurements}
        assert now.keys() == kept.keys()
        for key, values in kept.items():
            assert now[key] == pytest.approx(values, rel=1e-9), (record.cell.workload, key)
