"""Tables and the waterfall of a full factorial, on records whose gains are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from factorial_records import factorial_records, overlapping
from reporting import drawn, points
from timed import timed_findings

from harness.report.tables import Table
from suites.stack import report

VALUES = "  - {own_table: values, title: Values, workload: small}\n"
PAIRS = "  - {own_table: pairs, title: Pairs, workload: small}\n"
WATERFALL = "  - {own_figure: waterfall, title: Fall, workload: small}\n"
WHOLE = "  - {own_table: whole, title: Whole}\n"


@pytest.fixture(autouse=True)
def _factors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FACTORS", {"a": "First", "b": "Second", "c": "Third"})
    monkeypatch.setattr(report, "OVER", {"baseline": "plain", "all.a": "the first", "tf32": "TF32"})
    monkeypatch.setattr(report, "COMBINATIONS", "all")


def made_table(folder: Path, block: str, **changes: object) -> Table:
    records = factorial_records(overlapping, **changes)  # type: ignore[arg-type]
    findings = timed_findings(folder, block, records, suite="stack")
    made = findings.table(findings.blocks[0])
    assert made is not None
    return made


def test_rows_are_sorted_by_the_mean_over_orders_and_end_with_the_whole(tmp_path: Path) -> None:
    rows = [[cell.text for cell in row] for row in made_table(tmp_path, VALUES).rows]
    assert [row[0] for row in rows] == ["First", "Second", "Third", "all, or the product"]
    assert rows[0][2].startswith("▲ 2.00× (2.00 … 2.00) ᵐ")
    assert rows[2][2].startswith("▼ 0.900×")
    whole, product = overlapping(frozenset("abc")), 2 * 1.5 * 0.9
    assert rows[3][1].startswith(f"▲ {whole:.2f}×")
    assert rows[3][2].startswith(f"▲ {product:.2f}×")


def test_what_was_not_timed_in_every_combination_is_named(tmp_path: Path) -> None:
    made = made_table(tmp_path, VALUES, without=["all.b_c"])
    assert len(made.rows) == 3
    assert made.notes == (
        "not all combinations with Third have a right result that was timed here: they are left out",
    )
    assert made.rows[-1][0].notes == made.notes


def test_the_whole_is_compared_with_each_named_baseline(tmp_path: Path) -> None:
    made = made_table(tmp_path, WHOLE)
    row = dict(zip(made.header, (cell.text for cell in made.rows[0]), strict=True))
    whole = overlapping(frozenset("abc"))
    assert row["All over plain"].startswith(f"▲ {whole:.2f}×")
    assert row["All over the first"].startswith(f"▲ {whole / 2:.2f}×")
    assert row["All over TF32"] == "–"
    assert row["All over that product"].startswith("▼ 0.980×")
    assert row["Greedy order"] == "First 2.00× → Third 1.26× → Second 1.050× ᵐ"


def test_a_pair_stands_in_the_row_of_one_and_the_column_of_the_other(tmp_path: Path) -> None:
    made = made_table(tmp_path, PAIRS)
    assert made.header == ("Technique", "Second", "Third")
    assert [[cell.text[:7] for cell in row[1:]] for row in made.rows] == [
        ["▼ 0.700", "▲ 1.40×"],
        ["", "= 1.000"],
    ]


def test_bars_of_the_waterfall_end_where_the_next_begins_and_at_the_whole(tmp_path: Path) -> None:
    tree = drawn(
        timed_findings(tmp_path, WATERFALL, factorial_records(overlapping), suite="stack"), "waterfall"
    )
    ends = points(tree)
    places = {name.partition(":")[0]: x for name, (x, _) in ends.items()}
    assert list(places) == ["First", "Second", "Third", "All together"]
    assert places["Third"] == pytest.approx(places["All together"], abs=0.02)
