"""Interleaved cells in real children: samples pair by round, and each fault ends one cell."""

import pytest
from toy.sweep import LIMITS, PACKAGE, cell, sweep

from harness.records import Group, Limits, Sampling, measurement
from harness.sweep.environment import describe
from harness.sweep.executors.local import create
from harness.sweep.runner import pending, run
from harness.sweep.store import Store

pytestmark = pytest.mark.usefixtures("toy_suites")

SAMPLING = Sampling(rounds=5, target_ci_half_width=0.01, budget_s=0.5)


def variant(name, repeat=0, workload=None, **settings):
    one = cell(module="baseline", suite="timed", workload={"name": "w", **(workload or {})}, repeat=repeat)
    config = {"workload": one.config["workload"], "settings": settings}
    return one._replace(id=f"{one.id}{name}{repeat}", optimization=name, config=config)


def together(*cells):
    return Group(cells, PACKAGE, SAMPLING)


def test_the_samples_of_two_variants_pair_by_round(tmp_path):
    base, fast, untimed = variant("baseline"), variant("fast", time_s=0.5), variant("untimed", act="untimed")
    records = sweep(tmp_path, [together(base, fast, untimed)])
    assert {(r.status, r.reason) for r in records.values()} == {("ok", "")}
    ours, theirs = (measurement(records[c.id], "time").samples for c in (fast, base))
    assert len(ours) == len(theirs) >= 5
    assert all(0.497 < a / b < 0.503 for a, b in zip(ours, theirs, strict=True))
    warm_ups = [measurement(records[c.id], "time/warm_up").samples for c in (fast, base)]
    assert len(warm_ups[0]) == len(warm_ups[1]) >= 8
    assert len(measurement(records[base.id], "clock").samples) == len(theirs)
    (others,) = measurement(records[base.id], "others_cpu_share").samples
    assert 0 <= others <= 1
    assert measurement(records[untimed.id], "time") is None
    assert measurement(records[untimed.id], "flops").samples == (7.0,)
    assert records[base.id].conditions == {"device": "toy"}


def test_a_cell_that_is_not_timed_ends_before_the_rounds_begin(tmp_path):
    """So that a sweep killed in a later cell keeps it: the other one dies at once."""
    untimed, bad = variant("untimed", act="untimed"), variant("bad", act="die", at=0)
    records = sweep(tmp_path, [together(untimed, bad)])
    assert {c.optimization: records[c.id].status for c in (untimed, bad)} == {
        "untimed": "ok",
        "bad": "crashed",
    }
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert '"untimed"' in lines[0]


@pytest.mark.parametrize(("act", "kept"), [("fills a process of its own", True), ("fills in prepare", False)])
def test_others_go_on_where_what_failed_is_a_process_of_the_cells_own(tmp_path, act, kept):
    base, bad = variant("baseline"), variant("bad", act=act)
    first = variant("first", act="untimed")
    records = sweep(tmp_path, [together(base, first, bad)])
    assert records[bad.id].status == "out_of_memory"
    processes = {measurement(records[c.id], "process").samples for c in (base, first)}
    assert (len(processes) == 1) is kept


FAULTS = {
    "wrong": ("wrong_result", "output: off by 1"),
    "absent": ("unavailable", "has no such operation"),
    "fills in prepare": ("out_of_memory", "too much"),
    "raise": ("crashed", "broke in a turn"),
    "die": ("crashed", "SIGKILL"),
    "hang": ("timed_out", "over its limit of 8 s"),
    "breaks in close": ("crashed", "close failed"),
}


@pytest.mark.parametrize("act", FAULTS)
def test_a_fault_is_its_cells_own_and_the_others_are_still_paired(tmp_path, act):
    base, bad, good = variant("baseline"), variant("bad", act=act, at=10), variant("good", time_s=2.0)
    records = sweep(tmp_path, [together(base, bad, good)], Limits(8.0 if act == "hang" else 60.0))
    status, reason = FAULTS[act]
    assert records[bad.id].status == status
    assert reason in records[bad.id].reason
    assert records[base.id].status == records[good.id].status == "ok"
    times = [measurement(records[c.id], "time").samples for c in (base, good)]
    assert len(times[0]) == len(times[1]) >= 5


def test_a_group_that_was_cut_short_is_run_again_in_full(tmp_path):
    cells = [variant("baseline"), variant("fast", time_s=0.5), variant("wrong", act="wrong")]
    records = sweep(tmp_path, [together(*cells)])
    environment = describe()
    left = {one: r for one, r in records.items() if one != cells[1].id}
    (again,) = pending([together(*cells)], left, LIMITS, environment.digest)
    assert [c.id for c in again.cells] == [cells[0].id, cells[1].id]
    assert pending([together(*cells)], records, LIMITS, environment.digest) == []


def test_larger_shapes_than_one_that_did_not_fit_are_named_and_not_tried(tmp_path):
    groups = []
    for size in (1, 4, 8):
        for repeat in (0, 1):
            variants = [
                variant(name, repeat, {"size": size, "fits": fits})
                for name, fits in (("baseline", 9), ("big", 3))
            ]
            groups.append(together(*(c._replace(id=f"{c.id}-{size}", workload=f"w{size}") for c in variants)))
    seen = []
    with Store(tmp_path) as store:
        run(groups, store, create(tmp_path), LIMITS, describe(), seen.append, ["size"])
        records = list(store.records.values())
    said = {(r.cell.workload, r.cell.optimization, r.cell.repeat): (r.status, r.reason) for r in records}
    assert len(said) == 12
    assert all(status == "ok" for (_, name, _), (status, _) in said.items() if name == "baseline")
    assert said["w1", "big", 0][0] == "ok"
    assert "4 does not fit" in said["w4", "big", 0][1]
    assert said["w4", "big", 1] == ("out_of_memory", "not tried again: big ran out of memory on w4")
    assert said["w8", "big", 0] == (
        "out_of_memory", "not tried: big ran out of memory on w4, which is no larger (size 4)",
    )  # fmt: skip
