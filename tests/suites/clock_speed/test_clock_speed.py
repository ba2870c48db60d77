"""clock_speed: closed formulas against a walk through schedules, and the parts of a step."""

from itertools import chain, islice, repeat
from statistics import fmean

import pytest
from marked import wait_for

from suites.profiling import clock_speed
from suites.profiling.clock_speed import ImposedSpeeds
from suites.profiling.speed_model import (
    Dwell,
    Speeds,
    dwells,
    loss_as_waiting,
    mean_parts,
    slowdowns,
    step_ends_s,
)

RANKS, SLOW = 4, 0.8


def schedule(how, count, seed=1):
    return [
        Dwell(index * how.dwell_s, speeds)
        for index, speeds in enumerate(islice(dwells(how, RANKS, SLOW, seed), count))
    ]


def step_s(how, count, steps, work_s=1.0):
    ends_s = step_ends_s(schedule(how, count), 0.0, [work_s] * RANKS, 0.0, steps)
    assert ends_s[-1] < count * max(how.dwell_s, 1e9 if count == 1 else 0)
    return ends_s[-1] / steps


def test_the_walk_at_constant_speeds_is_the_closed_formula_and_alternating_together_is_as_good_as_steady():
    for pattern in ("full", "one_slow", "steady"):
        how = Speeds(pattern)
        assert step_s(how, 1, 10) == pytest.approx(slowdowns(how, RANKS, SLOW)["closed formula"])
    together = Speeds("alternating", 7.3, together=True)
    closed = slowdowns(together, RANKS, SLOW)["closed formula"]
    assert closed == slowdowns(Speeds("steady"), RANKS, SLOW)["closed formula"]
    assert step_s(together, 2_000, 8_000) == pytest.approx(closed, rel=1e-2)


def test_alternating_apart_is_between_its_limits():
    """Dwells of a thousandth and of a hundred steps are near the closed formulas, one of a step between.

    The long limit is the mean of the slowest speed, counted over all 2^4 states of four ranks.
    """
    states = [[SLOW if state >> rank & 1 else 1.0 for rank in range(RANKS)] for state in range(2**RANKS)]
    limits = slowdowns(Speeds("alternating", 1.0), RANKS, SLOW)
    assert limits["long dwells"] == pytest.approx(1 / fmean(min(speeds) for speeds in states))
    short = step_s(Speeds("alternating", 0.001), 20_000, 15)
    equal = step_s(Speeds("alternating", 1.0), 4_000, 3_000)
    long = step_s(Speeds("alternating", 100.0), 1_000, 70_000)
    assert short == pytest.approx(limits["short dwells"], rel=0.01)
    assert long == pytest.approx(limits["long dwells"], rel=0.02)
    assert limits["short dwells"] * 1.02 < equal < limits["long dwells"] * 0.98


def instants(works_s, communication_s, steps):
    """Return what ranks would report that compute for `works_s` each, and wait for the slowest.

    They use 0.4 of a core while they compute, and 0.1 s of processor time from there to the average.
    """
    names = ("ready", "ready_cpu_s", "averaged", "averaged_cpu_s")
    found = [{name: [] for name in names} for _ in works_s]
    now_s = 10.0
    for step in range(steps):
        for one, work_s in zip(found, works_s, strict=True):
            one["ready"].append(now_s + work_s)
            one["averaged"].append(now_s + max(works_s) + communication_s)
            one["ready_cpu_s"].append(0.4 * work_s * (step + 1) + 0.1 * step)
            one["averaged_cpu_s"].append((0.4 * work_s + 0.1) * (step + 1))
        now_s += max(works_s) + communication_s
    return found


def test_parts_add_up_to_the_step_and_the_share_of_a_core_is_of_the_time_in_which_a_rank_computes():
    parts = mean_parts(instants([1.25, 1.0, 1.1, 0.9], 0.05, 6))
    assert parts.step_s == pytest.approx(1.30)
    assert [one.waiting_s for one in parts.ranks] == pytest.approx([0, 0.25, 0.15, 0.35])
    assert [one.computing_cpu_s for one in parts.ranks] == pytest.approx([0.5, 0.4, 0.44, 0.36])
    for one in parts.ranks:
        assert one.computing_s + one.waiting_s + one.communication_s == pytest.approx(parts.step_s)
    readings = clock_speed.of_parts(parts, parts, Speeds())
    shares = {one.method: one.value for one in readings if one.metric == "core_share"}
    assert shares == pytest.approx({"rank 0": 0.4, "other ranks": 0.4})


def test_what_of_a_slow_ranks_loss_is_waiting():
    for ranks in (2, 4, 8):
        full = mean_parts(instants([1.0] * ranks, 0.1, 5))
        slow = mean_parts(instants([1.25] + [1.0] * (ranks - 1), 0.1, 5))
        share = (slow.waiting_s - full.waiting_s) / (slow.step_s - full.step_s)
        assert share == pytest.approx(loss_as_waiting(ranks))


class RecordedQuota:
    """In place of a kernel's group: what was set, in order."""

    def __init__(self):
        self.shares, self.pids, self.closed = [], [], False
        self.enter = self.pids.append

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.closed = True

    def limit(self, share, period_s):
        self.shares.append(share)


@pytest.fixture
def quotas(monkeypatch):
    made = []
    monkeypatch.setattr(clock_speed, "CpuQuota", lambda: made.append(RecordedQuota()) or made[-1])
    return made


def test_dwell_follows_dwell_until_the_block_ends_and_no_limit_is_left(quotas):
    first = [(0.8, 1.0), (1.0, 1.0), (0.8, 0.8)]
    speeds = ImposedSpeeds([7, 8], 0.5, 0.005)
    with speeds.following(chain(first, repeat((0.8, 0.8))), 0.02) as imposed:
        wait_for(lambda: len(imposed) >= len(first))
    assert [one.speeds for one in imposed[:3]] == first
    begins_s = [one.begin_s for one in imposed]
    assert begins_s == sorted(begins_s)
    assert [one.pids for one in quotas] == [[7], [8]]
    assert quotas[0].shares == [0.4, 0.5, 0.4, None]
    assert quotas[1].shares == [0.5, 0.4, None], "the same speed is not set again"
    with speeds.following(iter([(0.8, 1.0)]), 0.0) as imposed:
        pass
    assert [one.speeds for one in imposed] == [(0.8, 1.0)]  # set once
    speeds.close()
    assert all(one.closed for one in quotas)


def test_what_fails_while_speeds_are_followed_is_raised(quotas):
    def failing():
        yield (1.0, 1.0)
        raise OSError("the group is gone")

    speeds = ImposedSpeeds([7, 8], 0.5, 0.005)
    given = failing()
    with pytest.raises(OSError, match="the group is gone"), speeds.following(given, 0.005):
        wait_for(lambda: given.gi_frame is None)  # a generator that has raised has no frame
