"""How long a sweep takes: by earlier runs where there are any, else by the suite's default."""

from dataclasses import replace

import pytest
from planned import RUN, cells

from harness.records import Limits, Record, Sampling
from harness.sweep import plan as module
from harness.sweep.environment import describe
from harness.sweep.plan import (
    PACE_AFTER_S,
    START_UP_S,
    Basis,
    CellEstimate,
    Countdown,
    Plan,
    SweepEstimate,
    earlier_seconds,
    estimate,
    plan,
    write_plan,
)
from harness.sweep.store import Store

LIMITS = Limits(100.0)
GROUPS = plan(replace(RUN, repeats=1), "here", lambda variant: "code")
KEY = ("a", "baseline")


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RESULTS", (tmp_path / "results", tmp_path / "committed"))
    return tmp_path / "results"


def keep(folder, environment, *seconds, suite="toy", number=0):
    """Write a folder with records of repeats of one cell."""
    one = cells(RUN)[number]._replace(suite=suite, workload="ab"[number], optimization="baseline")
    with Store(folder) as store:
        store.write_environment(environment)
        for repeat, took_s in enumerate(seconds):
            cell = one._replace(id=f"{one.id}{repeat}")
            store.append(Record(cell, "ok", environment=environment.digest, duration_s=took_s))
        write_plan(folder, Plan(suite, (cell.id,)))


def test_the_median_of_earlier_records_counts_and_the_own_folder_comes_first(results):
    here = describe()
    keep(results / "toy", here, 1.0, 2.0, 40.0)
    keep(results.parent / "committed/reference/toy_long", here, 9.0, 9.0)
    keep(results / "elsewhere", here, 8.0, suite="other")
    (results / "stray").mkdir()
    assert earlier_seconds("toy", results / "new", here) == {KEY: (9.0, Basis.HERE, False)}
    assert earlier_seconds("toy", results / "toy", here) == {KEY: (2.0, Basis.HERE, False)}


def test_the_kind_of_host_decides_and_one_rate_scales_what_others_took(results):
    here = describe()
    keep(results / "toy", here._replace(cpu="another CPU"), 30.0)
    assert earlier_seconds("toy", results / "new", here) == {KEY: (30.0, Basis.ELSEWHERE, False)}
    keep(results / "more", here._replace(cores=here.cores + 1), 10.0, number=-1)
    keep(results / "own", here._replace(commit="other", versions={"torch": "1.0"}), 60.0)
    assert earlier_seconds("toy", results / "own", here) == {
        KEY: (60.0, Basis.HERE, False),
        ("b", "baseline"): (20.0, Basis.ELSEWHERE, False),  # cells take twice as long here
    }


def of_first(seconds=None, groups=GROUPS):
    earlier = {} if seconds is None else {KEY: CellEstimate(seconds, Basis.HERE)}
    return estimate(groups, earlier, 7.0, LIMITS, 1).cells[groups[0].cells[0].id]


def test_a_cell_takes_what_it_took_or_the_default_up_to_its_limit_of_each_turn():
    assert of_first() == (7.0 + START_UP_S, Basis.DEFAULT, False)
    assert of_first(20.0) == (20.0 + START_UP_S, Basis.HERE, False)
    assert of_first(120.0) == (100.0 + START_UP_S, Basis.HERE, True)
    together = plan(replace(RUN, sampling=Sampling()), "here", lambda variant: "code")
    share_s = START_UP_S / len(together[0].cells)
    assert of_first(120.0, together) == (120.0 + share_s, Basis.HERE, False)


def countdown(workers=1, **seconds):
    cells = {name: CellEstimate(one, Basis.HERE) for name, one in seconds.items()}
    return Countdown(SweepEstimate(cells, workers), 1000.0)


def test_what_is_left_follows_the_prediction_and_then_the_pace():
    short = PACE_AFTER_S - 10
    left = countdown(a=short, b=20.0, c=50.0)
    assert left.left_s == short + 70.0
    left.finish("a", 1000.0 + short)
    assert left.left_s == 70.0
    left.finish("b", 1000.0 + 3 * (short + 20.0))
    assert left.left_s == pytest.approx(150.0)
    left.finish("c", 5000.0)
    left.finish("stranger", 5000.0)
    assert left.left_s == 0
    assert countdown(2, a=30.0, b=30.0).left_s == 30.0
    left = countdown(a=1.0, b=10.0)  # the pace counts after so many real seconds, too
    left.finish("a", 1000.0 + PACE_AFTER_S)
    assert left.left_s == pytest.approx(10.0 * PACE_AFTER_S)
