"""How long a sweep takes: from earlier cells where there are any, else from the plan."""

from dataclasses import replace

import pytest
from earlier import before
from hypothesis import given
from hypothesis import strategies as st
from planned import RUN

from harness.records import Limits, Sampling
from harness.sweep.estimate.estimate import (
    PACE_AFTER_S,
    START_UP_S,
    CellEstimate,
    Countdown,
    EstimateBasis,
    SweepEstimate,
    as_time,
    at_least,
    estimate,
)
from harness.sweep.plan import plan

LIMITS = Limits(100.0)


def groups_of(run=RUN):
    return plan(run, "here", lambda variant: "code")


def build_plan(groups):
    return [cell for group in groups for cell in group.cells]


@pytest.fixture
def groups():
    return groups_of(replace(RUN, repeats=1))


@pytest.fixture
def cell(groups):
    """Return the first cell, in a process of its own."""
    assert len(groups[0].cells) == 1
    return groups[0].cells[0]


def of(cell, groups, *earlier, limits=LIMITS):
    return estimate(groups, earlier, limits, 1).cells[cell.id]


def test_the_closest_earlier_cells_count_and_their_median(cell, groups):
    far = [before(cell, 50.0, size=77)]
    assert of(cell, groups, *far) == CellEstimate(50.0 + START_UP_S, EstimateBasis.OTHER_FIELDS)
    elsewhere = [*far, before(cell, 40.0, same_host=False)]
    assert of(cell, groups, *elsewhere) == CellEstimate(40.0 + START_UP_S, EstimateBasis.OTHER_HOST)
    here = [*elsewhere, before(cell, 10.0), before(cell, 12.0), before(cell, 30.0)]
    assert of(cell, groups, *here) == CellEstimate(12.0 + START_UP_S, EstimateBasis.SAME_HOST)


def test_a_field_that_only_one_of_both_has_does_not_part_them(cell, groups):
    assert of(cell, groups, before(cell, 5.0, new=1, source="other words")).basis == EstimateBasis.SAME_HOST


def test_another_workload_predicts_nothing(cell, groups):
    other = before(cell._replace(workload="b"), 5.0)
    assert of(cell, groups, other) == CellEstimate(LIMITS.timeout_s + START_UP_S, EstimateBasis.LIMIT)


def test_of_other_variants_the_longest_counts_where_this_one_never_ran(cell, groups):
    other = cell._replace(optimization="fast.x")
    earlier = [before(other, 5.0), before(other, 9.0), before(other, 50.0, size=77)]
    assert of(cell, groups, *earlier) == CellEstimate(9.0 + START_UP_S, EstimateBasis.OTHER_VARIANTS)
    assert of(cell, groups, before(other, 5000.0)).seconds == LIMITS.timeout_s + START_UP_S
    assert of(cell, groups, *earlier, before(cell, 7.0)).basis == EstimateBasis.SAME_HOST


def test_without_earlier_cells_the_sampling_budget_counts_where_there_is_one():
    groups = groups_of(replace(RUN, sampling=Sampling(budget_s=7.0)))
    found = estimate(groups, [], LIMITS, 1)
    assert {one.basis for one in found.cells.values()} == {EstimateBasis.BUDGET}
    assert found.cells[groups[0].cells[0].id].seconds == 14.0 + START_UP_S / len(groups[0].cells)
    assert found.unknown == []


def test_of_a_new_workload_what_the_variant_took_on_others_counts_but_at_least_the_budget():
    groups = groups_of(replace(RUN, repeats=1, sampling=Sampling(budget_s=7.0)))
    cell = groups[0].cells[0]
    start_s = START_UP_S / len(groups[0].cells)
    other = cell._replace(workload="other")
    slow = [before(other, seconds) for seconds in (20.0, 30.0, 50.0)]
    failed = [before(other, 0.1, status="unavailable")] * 9
    assert of(cell, groups, *slow, *failed) == CellEstimate(30.0 + start_s, EstimateBasis.OTHER_WORKLOADS)
    assert of(cell, groups, before(other, 3.0)).seconds == 14.0 + start_s
    assert of(cell, groups, *failed).basis == EstimateBasis.BUDGET
    assert of(cell, groups, before(cell, 3.0, size=77)).seconds == 14.0 + start_s
    assert of(cell, groups, before(cell, 3.0)).seconds == 3.0 + start_s


def test_a_cell_is_expected_to_run_into_its_limit(cell, groups):
    assert of(cell, groups, before(cell, 100.0, status="timed_out")).times_out
    assert of(cell, groups, before(cell, 120.0, timeout_s=600.0)) == (
        100.0 + START_UP_S,
        EstimateBasis.SAME_HOST,
        True,
    )
    assert not of(cell, groups, before(cell, 20.0, status="timed_out", timeout_s=20.0)).times_out
    assert not of(cell, groups, before(cell, 99.0)).times_out


def test_of_interleaved_cells_the_limit_is_for_each_turn():
    groups = groups_of(replace(RUN, sampling=Sampling()))
    cell = groups[0].cells[0]
    assert not of(cell, groups, before(cell, 300.0)).times_out
    assert of(cell, groups, before(cell, 300.0, status="timed_out")).times_out


def test_the_pace_counts_after_so_many_real_seconds_too():
    left = countdown(a=(1.0, EstimateBasis.SAME_HOST), b=(10.0, EstimateBasis.SAME_HOST))
    left.finish("a", 1.0, 1000.0 + PACE_AFTER_S)
    assert left.left_s == pytest.approx(10.0 * PACE_AFTER_S)


def test_workers_share_the_time_and_unknown_cells_are_not_in_it(groups):
    known = build_plan(groups)[:2]
    found = estimate(groups, [before(cell, 20.0) for cell in known], LIMITS, 2)
    starts_s = sum(START_UP_S / len(group.cells) for group in groups for cell in group.cells if cell in known)
    assert found.seconds == pytest.approx((2 * 20.0 + starts_s) / 2)
    assert found.unknown == [cell.id for cell in build_plan(groups)[2:]]
    assert found.bases == {EstimateBasis.SAME_HOST: 2, EstimateBasis.LIMIT: len(found.unknown)}


def test_only_children_that_are_not_forked_import_the_suite():
    groups = groups_of(replace(RUN, repeats=3))
    earlier = [before(cell, 20.0) for cell in build_plan(groups)]
    cells_s = 20.0 * len(build_plan(groups))

    def starts(workers=1, **forks):
        seconds = estimate(groups, earlier, LIMITS, workers, **forks).seconds * workers
        return (seconds - cells_s) / START_UP_S

    assert len(groups) > 3
    assert starts() == pytest.approx(len(groups))
    assert starts(forks=lambda group: True) == pytest.approx(1)
    assert starts(workers=2, forks=lambda group: True) == pytest.approx(1)
    assert starts(forks=lambda group: group is not groups[0]) == pytest.approx(2)


def countdown(workers=1, **cells):
    return Countdown(
        SweepEstimate({name: CellEstimate(*cell) for name, cell in cells.items()}, workers), 1000.0
    )


def test_what_is_left_follows_the_prediction_and_then_the_pace():
    short = PACE_AFTER_S - 10
    left = countdown(
        a=(short, EstimateBasis.SAME_HOST),
        b=(20.0, EstimateBasis.SAME_HOST),
        c=(50.0, EstimateBasis.SAME_HOST),
    )
    assert left.left_s == short + 70.0
    left.finish("a", 1.0, 1000.0 + short)
    assert left.left_s == 70.0
    left.finish("b", 1.0, 1000.0 + 3 * (short + 20.0))
    assert left.left_s == pytest.approx(150.0)
    left.finish("c", 1.0, 5000.0)
    left.finish("stranger", 1.0, 5000.0)
    assert left.left_s == 0


def test_cells_of_which_nothing_is_known_are_learnt_from_the_first_of_them():
    left = countdown(
        a=(600.0, EstimateBasis.LIMIT), b=(600.0, EstimateBasis.LIMIT), c=(8.0, EstimateBasis.SAME_HOST)
    )
    assert left.left_s is None
    left.finish("a", 4.0, 1004.0)
    assert left.left_s == pytest.approx(12.0)


def test_what_is_left_is_shared_by_the_workers():
    assert countdown(2, a=(30.0, EstimateBasis.SAME_HOST), b=(30.0, EstimateBasis.SAME_HOST)).left_s == 30.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "1 s"), (89, "89 s"), (100, "2 min"), (720, "12 min"), (7200, "2 h"), (12000, "3 h 20 min")],
)
def test_durations_are_written_as_a_person_says_them(seconds, words):
    assert as_time(seconds) == words


@given(st.floats(0, 1e7))
def test_no_duration_has_sixty_minutes(seconds):
    assert " 60 min" not in as_time(seconds).partition(" h")[2]


def test_what_a_cell_takes_at_least_raises_an_estimate_and_never_lowers_it(cell, groups):
    found = estimate(groups, [before(cell, 20.0)], LIMITS, 1)
    assert at_least(found, {cell.id: 90.0}).cells[cell.id].seconds == 90.0
    assert at_least(found, {cell.id: 1.0, "stranger": 9.0}) == found
