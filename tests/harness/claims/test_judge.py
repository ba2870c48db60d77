"""The judge, on records made by hand: every outcome, and every way in which a figure must not pass."""

import math
from dataclasses import replace

import pytest
from judged import figure, one
from scipy import stats
from synthetic import claim, made

from harness.claims.judge import judge
from harness.claims.model import Difference


@pytest.mark.parametrize(
    ("relation", "samples", "expected"),
    [
        ("about", (90.0,), "holds"),
        ("about", (110.0,), "holds"),
        ("about", (89.9,), "falls short"),
        ("about", (110.1,), "exceeds"),
        ("about", (89.0, 91.0), "undecided"),
        ("at_least", (90.0,), "holds"),
        ("at_least", (89.9,), "falls short"),
        ("at_least", (89.0, 500.0), "undecided"),
        ("at_most", (110.0,), "holds"),
        ("at_most", (110.1,), "exceeds"),
        ("at_most", (50.0, 111.0), "undecided"),
        ("range", (90.0, 220.0), "holds"),
        ("range", (89.9,), "falls short"),
        ("range", (220.1,), "exceeds"),
        ("range", (89.0, 150.0), "undecided"),
    ],
)
def test_outcome_of_each_relation_at_and_near_its_edges(relation, samples, expected):
    upper = 200.0 if relation == "range" else None
    verdict = one(claim(100.0, relation=relation, tolerance=0.1, upper=upper), figure(*samples))
    assert verdict.outcome == expected
    assert (verdict.low, verdict.high) == (min(samples), max(samples))
    assert (verdict.ratio is None) == (relation == "range")


def test_up_to_is_a_best_case_that_any_gain_below_it_agrees_with():
    held = claim(1.4, relation="up_to", tolerance=0.1, unit="1")
    samples = [(1.0,), (1.54,), (1.55,), (0.99,), (0.9, 1.2)]
    outcomes = [one(held, figure(*each, unit="1")).outcome for each in samples]
    assert outcomes == ["holds", "holds", "exceeds", "falls short", "undecided"]


OTHER_METHOD = made(figures={("bytes", "other"): ("B", "measured", (100.0,))}, notes=("way: did not apply",))
RACE = figure(100.0, status="wrong_result", reason="a race", repeat=1)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([made(optimization="another")], "no record of baseline on small"),
        *(
            ([made(status=status, reason="why")], f"the cell ended as {status.replace('_', ' ')} (why)")
            for status in ("out_of_memory", "timed_out", "crashed", "unavailable", "wrong_result")
        ),
        ([figure(100.0), RACE], "the cell ended as wrong result (a race)"),
        ([OTHER_METHOD], "the cell has no bytes by way (way: did not apply)"),
        ([figure(100.0, unit="s")], "recorded in s, the claim is in B"),
        ([figure(math.nan)], ""),
        ([figure(100.0), figure(100.0, origin="simulated", repeat=1)], "its repeats have"),
    ],
)
def test_what_is_no_value_settles_nothing_and_has_its_reason(records, reason):
    verdict = one(claim(), *records)
    assert (verdict.outcome, verdict.where) == ("unavailable", "")
    assert (verdict.ours, verdict.low, verdict.high, verdict.ratio) == (None,) * 4
    assert reason in verdict.reason


def test_a_value_recorded_before_the_cell_ran_out_of_memory_counts_but_not_as_stated():
    verdict = one(claim(), figure(100.0, status="out_of_memory", reason="later"))
    assert (verdict.outcome, verdict.where) == ("holds", "elsewhere")
    assert verdict.differs == (Difference("status", "out_of_memory", "ok"),)


@pytest.mark.parametrize(
    ("stat", "ends"), [("median", (100.0, 80.0, 120.0)), ("min", (80.0,) * 3), ("max", (120.0,) * 3)]
)
def test_repeats_are_taken_together_in_any_order(stat, ends):
    records = [figure(80.0, 100.0, repeat=1), figure(100.0, 120.0, repeat=0)]
    held = claim(ends[0], stat=stat)
    verdict = one(held, *records)
    assert (verdict.ours, verdict.low, verdict.high) == ends
    assert verdict.outcome == ("undecided" if stat == "median" else "holds")
    assert (verdict.processes, verdict.samples) == (2, 4)
    assert verdict.basis == ("samples" if stat == "median" else stat)
    assert judge([held], records[::-1]) == [verdict]


def test_an_average_is_compared_with_the_interval_of_the_mean_which_one_sample_has_not():
    samples = [80.0, 90.0, 100.0, 150.0]
    verdict = one(claim(105.0, stat="mean"), figure(*samples[:2], repeat=1), figure(*samples[2:], repeat=0))
    by_scipy = stats.ttest_1samp(samples, 0).confidence_interval(0.95)
    assert (verdict.ours, verdict.low, verdict.high) == pytest.approx((105.0, *by_scipy))
    assert verdict.outcome == "undecided"
    assert (verdict.basis, verdict.processes, verdict.samples) == ("mean", 2, 4)
    assert one(claim(stat="mean"), figure(100.0)).outcome == "unavailable"


def test_bounds_are_compared_as_bounds_and_have_no_middle():
    verdict = one(claim(100.0, stat="bounds"), figure(50.0, 200.0))
    assert (verdict.outcome, verdict.low, verdict.high, verdict.ratio) == ("undecided", 50.0, 200.0, None)
    assert (verdict.basis, one(claim(100.0), figure(150.0)).ratio) == ("bounds", 1.5)


def test_one_verdict_per_interpretation_in_order_and_other_suites_records_ignored():
    held = claim()
    second = held.interpretations[0]._replace(name="second", variant="faster")
    held = replace(held, interpretations=(*held.interpretations, second))
    foreign = figure(100.0, suite="foreign")
    assert [v.outcome for v in judge([held], [foreign])] == ["unavailable", "unavailable"]
    verdicts = judge([held], [figure(100.0), figure(50.0, optimization="faster"), foreign])
    assert [(v.interpretation, v.outcome) for v in verdicts] == [("only", "holds"), ("second", "falls short")]


GPU = {"device": "cuda", "optimizer": "adam | adamw", "device_name": "*A100*"}
THERE = {"device": "cuda", "optimizer": "adamw", "device_name": "NVIDIA A100-SXM4-80GB", "batch": "4"}


@pytest.mark.parametrize(
    ("origin", "changed", "differs"),
    [
        ("measured", {}, None),
        ("measured", {"device": "cpu"}, Difference("device", "cpu", "cuda")),
        ("measured", {"device": ""}, Difference("device", "", "cuda")),
        ("measured", {"optimizer": "sgd"}, Difference("optimizer", "sgd", "adam | adamw")),
        ("published", {}, None),
        ("simulated", {}, Difference("origin", "simulated", "measured")),
        ("emulated", {}, Difference("origin", "emulated", "measured")),
    ],
)
def test_what_differs_from_a_claims_conditions_is_listed_and_is_elsewhere(origin, changed, differs):
    recorded = {name: value for name, value in (THERE | changed).items() if value}
    verdict = one(claim(conditions=GPU), figure(100.0, origin=origin, conditions=recorded))
    assert verdict.outcome == "holds"
    assert verdict.differs == (() if differs is None else (differs,))
    expected = ("as stated", "holds") if differs is None else ("elsewhere", "context")
    assert (verdict.where, verdict.shown) == expected


SHAPE = {"num_hidden_layers": 32, "micro_batch_size": 1, "device_memory_B": 80e9}
NEW = {"bias": False}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (SHAPE | NEW, ""),
        (SHAPE, ""),  # a field at its default may be younger than the record
        (SHAPE | {"more": 7}, ""),
        (SHAPE | {"bias": True}, "small was run with bias True; this claim is about bias False"),
        (
            SHAPE | {"micro_batch_size": 2, "device_memory_B": 141e9},
            "micro_batch_size 2, device_memory_B 141 GB; this claim is about micro_batch_size 1, device_mem",
        ),
        ({"micro_batch_size": 1}, "no num_hidden_layers recorded, no device_memory_B recorded"),
    ],
)
def test_the_same_name_with_another_shape_gives_no_value(fields, told):
    held = claim(requires=SHAPE, defaults=NEW)
    verdict = one(held, figure(100.0, fields=fields))
    assert (verdict.outcome, verdict.ours) == (("unavailable", None) if told else ("holds", 100.0))
    assert verdict.cell
    assert told in verdict.reason
    both = one(held, figure(1.0, fields=SHAPE | {"num_hidden_layers": 4}), figure(100.0, fields=SHAPE))
    assert (both.outcome, both.low, both.high) == ("holds", 100.0, 100.0)
