"""docs/cluster.md has the values of the kept runs, and the benchmark counts right."""

import json

import pytest
from benchmarks import cost_per_cell

from harness.config.code_fingerprint import ROOT

KEPT = ROOT / "results/reference/executors/cost_per_cell.jsonl"


def test_the_page_has_the_table_of_the_kept_runs():
    assert cost_per_cell.rows(KEPT) in (ROOT / "docs/cluster.md").read_text()


def test_kept_runs_are_of_clean_checkouts_and_all_cells_ended_well():
    for run in map(json.loads, KEPT.read_text().splitlines()):
        assert run["ok"] == run["cells"]
        assert run["environment"]["commit"]
        assert not run["environment"]["dirty"]


def test_the_cost_is_the_wall_time_of_both_children_less_their_own(monkeypatch):
    given = cost_per_cell.read(["local", "--cells", "10"])
    ended = [cost_per_cell.Ended("ok", 0.2)] * 10
    monkeypatch.setattr(cost_per_cell, "measured", lambda given: (2.0, [0.1 * i for i in range(10)], ended))
    found = cost_per_cell.summary(given)
    assert found["own_per_cell_s"] == pytest.approx(0.2)
    assert found["cost_per_cell_s"] == pytest.approx((2 * 2.0 - 10 * 0.2) / 10)
    assert (found["ok"], found["cells_per_group"], found["groups_per_job"]) == (10, 1, None)
