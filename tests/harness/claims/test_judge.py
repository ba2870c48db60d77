"""The judge, on records made by hand: every outcome, and every way in which a figure must not pass."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged import figure, one
from scipy import stats
from synthetic import claim, made

from harness.claims.judge import judge, outcome
from harness.claims.model import Difference


@pytest.mark.parametrize(
    ("relation", "samples", "expected"),
    [
        ("about", (100.0,), "holds"),
        ("about", (90.0,), "holds"),
        ("about", (110.0,), "holds"),
        ("about", (89.9,), "falls short"),
        ("about", (110.1,), "exceeds"),
        ("about", (89.0, 91.0), "undecided"),
        ("about", (109.0, 111.0), "undecided"),
        ("about", (80.0, 120.0), "undecided"),
        ("at_least", (1000.0,), "holds"),
        ("at_least", (90.0,), "holds"),
        ("at_least", (40.0,), "falls short"),
        ("at_least", (89.0, 500.0), "undecided"),
        ("at_most", (1.0,), "holds"),
        ("at_most", (110.0,), "holds"),
        ("at_most", (111.0,), "exceeds"),
        ("at_most", (50.0, 111.0), "undecided"),
        ("range", (100.0,), "holds"),
        ("range", (90.0, 220.0), "holds"),
        ("range", (89.9,), "falls short"),
        ("range", (220.1,), "exceeds"),
        ("range", (89.0, 150.0), "undecided"),
        ("range", (150.0, 221.0), "undecided"),
        ("range", (50.0, 300.0), "undecided"),
    ],
)
def test_outcome_of_each_relation_at_and_near_its_edges(
    relation: str, samples: tuple[float, ...], expected: str
) -> None:
    upper = 200.0 if relation == "range" else None
    verdict = one(claim(100.0, relation=relation, tolerance=0.1, upper=upper), figure(*samples))
    assert verdict.outcome == expected
    assert (verdict.low, verdict.high) == (min(samples), max(samples))


@given(
    st.floats(0, 0.9),
    st.floats(1e-3, 1e3),
    st.floats(0, 1e3),
    st.sampled_from(["about", "at_least", "at_most"]),
)
def test_outcome_does_not_depend_on_the_scale_of_the_unit(
    tolerance: float, low: float, more: float, relation: str
) -> None:
    small = claim(1.0, relation=relation, tolerance=tolerance)
    large = claim(2.0**20, relation=relation, tolerance=tolerance)
    high = low * (1 + more)
    assert outcome(small, low, high) == outcome(large, low * 2**20, high * 2**20)


def test_a_wider_interval_never_turns_one_verdict_into_another() -> None:
    held = claim(100.0, tolerance=0.1)
    for low in range(50, 150, 3):
        for high in range(low, 160, 3):
            wide, narrow = outcome(held, low, high), outcome(held, low, low)
            assert wide in (narrow, "undecided")


def test_no_record_is_unavailable_and_never_a_pass() -> None:
    verdict = one(claim(), made(optimization="another"))
    assert verdict.outcome == "unavailable"
    assert verdict.where == ""
    assert (verdict.ours, verdict.low, verdict.high, verdict.ratio) == (None,) * 4
    assert verdict.reason == "no record of baseline on small"


@pytest.mark.parametrize("status", ["out_of_memory", "timed_out", "crashed", "unavailable", "wrong_result"])
def test_a_cell_that_did_not_end_well_gives_its_reason(status: str) -> None:
    verdict = one(claim(), made(status=status, reason="the reason told"))
    assert verdict.outcome == "unavailable"
    assert verdict.reason == f"the cell ended as {status.replace('_', ' ')} (the reason told)"


def test_a_wrong_result_settles_nothing_even_with_a_value() -> None:
    assert one(claim(), figure(100.0, status="wrong_result")).outcome == "unavailable"


def test_a_result_that_is_wrong_in_one_process_settles_nothing() -> None:
    verdict = one(claim(), figure(100.0), figure(100.0, status="wrong_result", reason="a race", repeat=1))
    assert (verdict.outcome, verdict.ours) == ("unavailable", None)
    assert verdict.reason == "the cell ended as wrong result (a race)"


def test_a_value_recorded_before_the_cell_ran_out_of_memory_counts_but_not_as_stated() -> None:
    verdict = one(claim(), figure(100.0, status="out_of_memory", reason="later"))
    assert verdict.outcome == "holds"
    assert verdict.where == "elsewhere"
    assert verdict.differs == (Difference("status", "out_of_memory", "ok"),)


def test_another_method_of_the_same_metric_is_not_taken_for_it() -> None:
    record = made(figures={("bytes", "other"): ("B", "measured", (100.0,))}, notes=("way: did not apply",))
    verdict = one(claim(), record)
    assert verdict.outcome == "unavailable"
    assert verdict.reason == "the cell has no bytes by way (way: did not apply)"


def test_a_value_in_another_unit_is_refused() -> None:
    verdict = one(claim(), figure(100.0, unit="s"))
    assert verdict.outcome == "unavailable"
    assert "recorded in s, the claim is in B" in verdict.reason


@pytest.mark.parametrize("samples", [(), (math.nan,), (100.0, math.inf)])
def test_samples_that_are_no_numbers_give_no_value(samples: tuple[float, ...]) -> None:
    assert one(claim(), figure(*samples)).outcome == "unavailable"


def test_repeats_are_taken_together() -> None:
    verdict = one(claim(), figure(80.0, repeat=1), figure(100.0, repeat=0), figure(120.0, repeat=2))
    assert (verdict.ours, verdict.low, verdict.high) == (100.0, 80.0, 120.0)
    assert verdict.outcome == "undecided"


@pytest.mark.parametrize(("stat", "ours"), [("min", 80.0), ("max", 120.0)])
def test_an_end_of_the_samples_is_compared_alone(stat: str, ours: float) -> None:
    records = [figure(80.0, 100.0, repeat=1), figure(100.0, 120.0, repeat=0)]
    verdict = one(claim(ours, stat=stat), *records)
    assert (verdict.ours, verdict.low, verdict.high) == (ours, ours, ours)
    assert verdict.outcome == "holds"
    assert (verdict.basis, verdict.processes, verdict.samples) == (stat, 2, 4)


def test_an_average_is_compared_with_the_interval_of_the_mean() -> None:
    samples = [80.0, 90.0, 100.0, 150.0]
    verdict = one(claim(105.0, stat="mean"), figure(*samples[:2], repeat=1), figure(*samples[2:], repeat=0))
    by_scipy = stats.ttest_1samp(samples, 0).confidence_interval(0.95)
    assert (verdict.ours, verdict.low, verdict.high) == pytest.approx((105.0, *by_scipy))
    assert verdict.outcome == "undecided"
    assert (verdict.basis, verdict.processes, verdict.samples) == ("mean", 2, 4)


def test_one_sample_has_no_interval_of_its_mean() -> None:
    assert one(claim(stat="mean"), figure(100.0)).outcome == "unavailable"


def test_repeats_of_different_origin_are_not_mixed() -> None:
    assert one(claim(), figure(100.0), figure(100.0, origin="simulated", repeat=1)).outcome == "unavailable"


def test_per_divides_by_the_same_cells_metric() -> None:
    record = made(
        figures={("bytes", "way"): ("B", "measured", (280.0,)), ("things", ""): ("1", "calculated", (7.0,))}
    )
    verdict = one(claim(40.0, divide_by="things"), record)
    assert verdict.ours == pytest.approx(40.0)
    assert verdict.outcome == "holds"


@pytest.mark.parametrize("divisor", [None, 0.0, math.nan])
def test_per_with_nothing_to_divide_by_gives_no_value(divisor: float | None) -> None:
    figures = {("bytes", "way"): ("B", "measured", (280.0,))}
    if divisor is not None:
        figures["things", ""] = ("1", "calculated", (divisor,))
    assert one(claim(40.0, divide_by="things"), made(figures=figures)).outcome == "unavailable"


def test_one_verdict_per_interpretation_in_order_and_other_suites_records_ignored() -> None:
    held = claim()
    second = held.interpretations[0]._replace(name="second", variant="faster")
    held = replace(held, interpretations=(*held.interpretations, second))
    foreign = figure(100.0, suite="foreign")
    assert [v.outcome for v in judge([held], [foreign])] == ["unavailable", "unavailable"]
    verdicts = judge([held], [figure(100.0), figure(50.0, optimization="faster"), foreign])
    assert [(v.interpretation, v.outcome) for v in verdicts] == [("only", "holds"), ("second", "falls short")]


def test_the_order_of_records_does_not_matter() -> None:
    records = [figure(80.0 + i, repeat=i) for i in range(4)]
    assert judge([claim()], records) == judge([claim()], records[::-1])


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ((1.2,), "holds"),
        ((1.5,), "holds"),
        ((1.7,), "exceeds"),
        ((0.9,), "falls short"),
        ((0.9, 1.2), "undecided"),
    ],
)
def test_up_to_is_a_best_case_that_any_gain_below_it_agrees_with(
    samples: tuple[float, ...], expected: str
) -> None:
    held = claim(1.4, relation="up_to", tolerance=0.1, unit="1")
    assert one(held, figure(*samples, unit="1")).outcome == expected


def test_bounds_are_compared_as_bounds_and_have_no_middle() -> None:
    verdict = one(claim(100.0, stat="bounds"), figure(50.0, 200.0))
    assert (verdict.outcome, verdict.low, verdict.high, verdict.ratio) == ("undecided", 50.0, 200.0, None)
    assert verdict.basis == "bounds"


def test_a_range_has_no_single_value_to_be_a_ratio_of() -> None:
    assert one(claim(100.0, relation="range", upper=200.0), figure(150.0)).ratio is None
    assert one(claim(100.0), figure(150.0)).ratio == 1.5
