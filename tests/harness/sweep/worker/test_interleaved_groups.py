"""Interleaved cells in real children: samples pair by round, and each fault ends one cell."""

import pytest
from toy.sweep import LIMITS, PACKAGE, cell, sweep

from harness.records import Group, Limits, Sampling, measurement
from harness.sweep.environment import describe
from harness.sweep.runner import pending

pytestmark = pytest.mark.usefixtures("toy_suites")

SAMPLING = Sampling(rounds=5, target_ci_half_width=0.01, budget_s=0.5)


def variant(name, repeat=0, workload=None, **settings):
    one = cell(module="baseline", suite="timed", workload={"name": "w", **(workload or {})}, repeat=repeat)
    config = {"workload": one.config["workload"], "settings": settings}
    return one._replace(id=f"{one.id}{name}{repeat}", optimization=name, config=config)


def together(*cells):
    return Group(cells, PACKAGE, SAMPLING)


FAULTS = {
    "wrong": ("wrong_result", "output: off by 1"),
    "absent": ("unavailable", "has no such operation"),
    "fills in prepare": ("out_of_memory", "too much"),
    "raise": ("crashed", "broke in a turn"),
    "die": ("crashed", "SIGKILL"),
    "breaks in close": ("crashed", "close failed"),
}


def test_the_samples_of_variants_pair_by_round_and_a_fault_is_its_cells_own(tmp_path):
    """A group that was cut short is run again in full, without what has ended."""
    base, fast = variant("baseline"), variant("fast", time_s=0.5)
    untimed = variant("untimed", act="untimed")
    faults = {act: variant(f"bad {act}", act=act, at=10) for act in FAULTS}
    records = sweep(tmp_path, [together(base, fast, untimed, *faults.values())])
    assert {(records[c.id].status, records[c.id].reason) for c in (base, fast, untimed)} == {("ok", "")}
    for act, (status, reason) in FAULTS.items():
        assert (act, records[faults[act].id].status) == (act, status)
        assert reason in records[faults[act].id].reason
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
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert '"untimed"' in lines[0]  # it ends before the rounds begin: a sweep killed later keeps it
    here = describe().digest
    group = together(base, fast, faults["wrong"])
    assert pending([group], records, LIMITS, here) == []
    (again,) = pending([group], {one: r for one, r in records.items() if one != fast.id}, LIMITS, here)
    assert again.cells == (base, fast)


def test_a_turn_past_its_limit_ends_its_cell_alone(tmp_path):
    base, bad, good = variant("baseline"), variant("bad", act="hang", at=10), variant("good", time_s=2.0)
    records = sweep(tmp_path, [together(base, bad, good)], Limits(5.0))
    assert records[bad.id].status == "timed_out"
    assert "over its limit of 5 s" in records[bad.id].reason
    times = [measurement(records[c.id], "time").samples for c in (base, good)]
    assert len(times[0]) == len(times[1]) >= 5


@pytest.mark.parametrize(("act", "kept"), [("fills a process of its own", True), ("fills in prepare", False)])
def test_others_go_on_where_what_failed_is_a_process_of_the_cells_own(tmp_path, act, kept):
    base, bad = variant("baseline"), variant("bad", act=act)
    first = variant("first", act="untimed")
    records = sweep(tmp_path, [together(base, first, bad)])
    assert records[bad.id].status == "out_of_memory"
    processes = {measurement(records[c.id], "process").samples for c in (base, first)}
    assert (len(processes) == 1) is kept
