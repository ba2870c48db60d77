"""The page of answers on made-up claims, and that with the paper's tables row by row."""

import pandas
import pytest
from synthetic import made

from harness.claims.answers import answer_claims
from harness.claims.evidence import Findings
from harness.claims.paper import load_answers
from harness.report.index.answers_page import TABLES_HEADER, paper_tables
from harness.report.results import write_measurements

ASKED = load_answers()


def test_each_row_of_the_papers_tables_has_what_the_answer_of_its_claim_has():
    rows = answer_claims(ASKED.claims, Findings({}, {}))
    lines = [row for table in paper_tables(ASKED, rows) for row in table.rows]
    shown = {row[1].text: dict(zip(TABLES_HEADER, (cell.text for cell in row), strict=True)) for row in lines}
    (answer,) = [one for one in rows if one.claim.id == "table_1_7b"]
    row = shown["280GB; 4"]
    assert (row["Row"], row["What its source supports"]) == ("7B", answer.claim.source_says)
    assert (row["Answer"], row["Strength"]) == (f"{answer.answer}: {answer.why}", answer.strength)
    second = next(one.claim for one in ASKED.claims if one.id == "infiniband_rate")
    assert {"~400GB/s; 4.4s; 9x", second} <= set(shown), "a row with two claims has two lines"


RECORDS = {
    "one": [made("small", "fast", {("time", "warm"): ("s", "measured", (1.0, 2.0))}, suite="one")],
    "other": [made("large", "slow", {("bytes", ""): ("B", "calculated", (3.0,))}, suite="other")],
}


def test_every_sample_of_every_suite_is_a_row_also_without_pyarrow(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    assert str(tmp_path / "measurements.parquet") in write_measurements(tmp_path, RECORDS)
    monkeypatch.setattr("harness.report.results.ENGINE", "no_such_engine")
    assert "throughput-harness[parquet]" in write_measurements(tmp_path, RECORDS)
    parquet = pandas.read_parquet(tmp_path / "measurements.parquet")
    for table in (parquet, pandas.read_csv(tmp_path / "measurements.csv")):
        assert list(table["suite"]) == ["one", "one", "other"]
        assert list(table["value"]) == [1.0, 2.0, 3.0]
        assert list(table["unit"]) == ["s", "s", "B"]
