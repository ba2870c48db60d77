"""In which order a preset's tasks are run, and which of them a budget has time for."""

from harness.preset.programme import ClaimTarget, Task, done_by, ordered, settled


def task(workload, seconds=60.0, suite="one"):
    return Task(suite, workload, seconds, assumed=True)


def target(claim, *workloads, group="", suite="one", sized=(), first=True):
    pairs = dict.fromkeys(workloads, frozenset({"v"}))
    return ClaimTarget(suite, claim, group, pairs, frozenset(sized), first)


def order_of(tasks, targets, fixed_s=None, budget_s=1e9):
    return [[one.workload for one in part] for part in ordered(tasks, targets, fixed_s or {}, budget_s)]


def test_what_serves_most_claims_per_minute_comes_first():
    """A first value is worth more than a further one, the first group than another, a fitting size most."""
    tasks = [task("slow", 600), task("shared", 60), task("short", 30)]
    targets = [target("a", "slow"), target("b", "shared"), target("c", "shared"), target("d", "short")]
    assert order_of(tasks, targets) == [["shared", "short", "slow"], []]
    tasks = [task("a0", 20), task("a1", 20), task("a2", 20), task("b0", 60), task("b1", 120)]
    groups = [target("b", "b0", group="nearest"), target("b", "b1", group="other", first=False)]
    assert order_of(tasks, [target("a", "a0", "a1", "a2"), *groups])[0] == ["a0", "a1", "b0", "a2", "b1"]
    tasks = [task("small"), task("large", 70), task("larger", 80)]
    targets = [target("a", "small", "large", "larger", sized=("large", "larger"))]
    assert order_of(tasks, targets)[0] == ["large", "larger", "small"]


def test_a_claim_is_settled_with_three_values_of_each_group_or_all_where_there_are_fewer():
    five = [f"w{number}" for number in range(5)]
    targets = [target("a", *five), target("b", "w0", group="x"), target("b", "w1", group="y", first=False)]

    def ends(*workloads):
        done = {"one": set(workloads)}
        return [claim for (_, claim), is_settled in settled(targets, done).items() if is_settled]

    assert ends("w0") == ends("w1", "w2") == []
    assert ends("w0", "w1") == ["b"]
    assert ends("w2", "w3", "w4") == ["a"]
    assert done_by([task("w0"), task("w1")]) == {"one": {"w0", "w1"}}


def test_a_suites_fixed_seconds_count_until_it_has_begun_and_a_shorter_task_takes_the_place_of_a_longer():
    tasks = [task("cheap", 30, "two"), task("first"), task("second", 61)]
    targets = [target("a", "cheap", suite="two"), target("b", "first"), target("c", "second")]
    assert order_of(tasks, targets, {"two": 100.0, "one": 0.0})[0] == ["first", "second", "cheap"]
    assert order_of(tasks, targets, {"two": 20.0, "one": 30.0}, 140.0) == [["cheap", "first"], ["second"]]
    assert order_of(tasks, targets, {"two": 0.0, "one": 0.0}, 95.0) == [["cheap", "first"], ["second"]]
    first = ordered(tasks, targets, {"two": 0.0, "one": 0.0}, 95.0, [("one", "second")])
    assert [one.workload for one in first[0]] == ["second", "cheap"]
