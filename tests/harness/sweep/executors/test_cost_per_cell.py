"""docs/cluster.md has the values of the kept runs."""

import json

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
