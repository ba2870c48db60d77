"""docs/cluster.md has the values of the kept runs."""

import json

from harness.config.code_fingerprint import ROOT

KEPT = (ROOT / "results/reference/executors/cost_per_cell.jsonl").read_text().splitlines()


def test_the_page_has_the_table_of_the_kept_runs():
    """Milliseconds; of the first and the last tenth of the cells, the wall time per cell."""
    page = (ROOT / "docs/cluster.md").read_text()
    for one in map(json.loads, KEPT):
        assert one["ok"] == one["cells"]
        assert not one["environment"]["dirty"]
        parts = [f"wall_per_cell_of_{part}_part_s" for part in ("first", "last")]
        times = [f"{1e3 * one[name]:.3g} ms" for name in ("own_per_cell_s", "cost_per_cell_s", *parts)]
        counts = [f"{one['cells']:,}", str(one["cells_per_group"]), str(one["groups_per_job"] or "–")]
        assert f"| {' | '.join([one['executor'], *counts, *times])} |" in page
