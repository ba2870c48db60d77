"""In which order a preset's works are run, and which of them a budget has time for."""

from harness.preset.claim_coverage import ClaimTarget
from harness.preset.work_order import Task, TimeBudget, ordered, steps_of, valued, within


def work(name, seconds=60.0, suite="one"):
    return Task(suite, name, seconds, assumed=True)


def target(claim, *workloads, group="", suite="one"):
    return ClaimTarget(suite, claim, group, dict.fromkeys(workloads, frozenset({"v"})), len(workloads))


def test_what_settles_most_claims_per_minute_comes_first():
    works = [work("slow", 600), work("shared", 60), work("short", 30)]
    targets = [target("a", "slow"), target("b", "shared"), target("c", "shared"), target("d", "short")]
    assert [one.workload for one in ordered(works, targets, {}, 1e9)] == ["shared", "short", "slow"]


def test_a_claim_needs_three_workloads_of_each_group_and_more_come_last():
    five = [f"w{i}" for i in range(5)]
    targets = [target("a", *five), target("b", "other")]
    order = ordered([*map(work, five), work("other", 61)], targets, {}, 1e9)
    assert [one.workload for one in order] == ["other", "w0", "w1", "w2", "w3", "w4"]
    settles = [step.settles for step in steps_of(order, targets)]
    assert settles == [("b",), (), (), ("a",), (), ()]
    groups = [target("a", "w0", group="x"), target("a", "w1", group="y")]
    assert [step.settles for step in steps_of([work("w0"), work("w1")], groups)] == [(), ("a",)]


def test_a_claim_that_cannot_be_settled_in_time_takes_no_time_from_another():
    works = [work("a0", 40), work("a1", 40), work("b0", 10), work("b1", 10), work("b2", 90)]
    targets = [target("a", "a0", "a1"), target("b", "b0", "b1", "b2")]
    order = ordered(works, targets, {}, budget_s=100.0)
    assert [one.workload for one in order] == ["a0", "a1", "b0", "b1", "b2"]
    assert [one.workload for one in ordered(works, targets, {}, 1e9)][:2] == ["a0", "a1"]


def test_a_first_value_can_come_before_what_settles_another_claim():
    works = [*(work(f"a{i}", 20) for i in range(3)), work("b0", 50), work("b1", 90)]
    targets = [target("a", "a0", "a1", "a2"), target("b", "b0", "b1")]
    whole, first = (ordered(works, targets, {}, 115.0, value) for value in (0, 3))
    assert [one.workload for one in whole][:3] == ["a0", "a1", "a2"]
    assert [one.workload for one in first][:2] == ["a0", "b0"]
    groups = [target("b", "b0", group="nearest"), target("b", "b1", group="other")]
    assert ordered(works, groups, {}, 115.0, 5)[0].workload == "b0"
    assert valued(groups, {"one": {"b1"}}) == {("one", "b")}
    assert valued(groups, {"one": {"b1"}}, in_first_group=True) == set()


def test_a_work_that_other_claims_share_is_preferred():
    works = [work("own"), work("shared")]
    targets = [target("a", "own", "shared", "x", "y"), target("b", "shared", "z")]
    assert [one.workload for one in ordered(works, targets, {}, 1e9)] == ["shared", "own"]


def test_what_is_sized_for_a_gpu_is_needed_too():
    made = target("a", "small", "smaller", "smallest", "large", "larger")._replace(
        sized=frozenset({"large", "larger"})
    )
    works = [work("small"), work("smaller"), work("smallest"), work("large", 70), work("larger", 80)]
    order = ordered(works, [made], {}, 1e9)
    assert {one.workload for one in order[:3]} == {"large", "larger", "small"}
    assert [step.settles for step in steps_of(order, [made])] == [(), (), ("a",), (), ()]
    assert [step.settles for step in steps_of(works, [made])] == [(), (), (), (), ("a",)]


def test_a_suites_fixed_seconds_count_until_it_has_begun():
    works = [work("cheap", 30, "two"), work("first", 60), work("second", 60)]
    targets = [target("a", "cheap", suite="two"), target("b", "first"), target("c", "second")]
    order = ordered(works, targets, {"two": 100.0}, 1e9)
    assert [one.workload for one in order] == ["first", "second", "cheap"]
    fit, late, seconds = within(works, TimeBudget(165.0, {"two": 100.0}, report_s=10.0))
    assert [one.workload for one in fit] == ["cheap"]
    assert [one.workload for one in late] == ["first", "second"]
    assert seconds == 140.0


def test_a_shorter_work_takes_the_place_of_one_that_does_not_fit():
    fit, late, _ = within([work("a", 50), work("long", 100), work("b", 40)], TimeBudget(100.0, {}, 5.0))
    assert [one.workload for one in fit] == ["a", "b"]
    assert [one.workload for one in late] == ["long"]
