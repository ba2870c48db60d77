"""The page with the paper's tables row by row, and the one table of every sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas
import pytest
import yaml
from synthetic import made

from harness.claims.answers import answer_claims
from harness.claims.evidence import Findings
from harness.claims.paper import load_answers
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.report.index.answers_page import TABLES_HEADER, paper_tables, tables_markdown, tables_page
from harness.report.results import write_measurements
from harness.report.spec import load_spec

ASKED = load_answers()
ROWS = answer_claims(ASKED.claims, Findings({}, {}))


def test_table_iv_has_its_seven_innovations_in_order() -> None:
    table = next(one for one in paper_tables(ASKED, ROWS) if one.title.startswith("Table IV"))
    names = [row[0].text.partition(": ")[2] for row in table.rows if row[0].text != "–"]
    assert names == [
        "OVERLORD [6]",
        "ZeRO-Offload [7]",
        "Triton-distributed [9]",
        "E-ECMP (Meta) [10]",
        "InfiniBand 400G [11]",
        "Chopper [12]",
        "UniOrch [13]",
    ]


def test_each_row_has_what_the_answer_of_its_claim_has() -> None:
    lines = {row[1].text: row for table in paper_tables(ASKED, ROWS) for row in table.rows}
    shown = dict(zip(TABLES_HEADER, (cell.text for cell in lines["280GB; 4"]), strict=True))
    (claim,) = [one for one in ASKED.claims if one.id == "table_1_7b"]
    (answer,) = [one for one in ROWS if one.claim.id == "table_1_7b"]
    assert shown["Row"] == "7B"
    assert shown["What its source supports"] == claim.source_says
    assert (shown["Answer"], shown["Strength"]) == (f"{answer.answer}: {answer.why}", answer.strength)
    (changed,) = [replace(answer, answer="confirmed", strength="A", why="")]
    others = [changed if one is answer else one for one in ROWS]
    again = {row[1].text: row for table in paper_tables(ASKED, others) for row in table.rows}
    assert [cell.text for cell in again["280GB; 4"][-2:]] == ["confirmed", "A"]


def test_a_row_without_values_of_ours_says_why() -> None:
    lines = {row[1].text: row for table in paper_tables(ASKED, ROWS) for row in table.rows}
    here = TABLES_HEADER.index("Here")
    title = load_spec("offload").title
    assert lines["Enables 2-4x Larger Models/Batches"][here].text == f"no results of “{title}”"


def test_a_row_with_two_claims_has_two_lines() -> None:
    table = next(one for one in paper_tables(ASKED, ROWS) if one.title.startswith("Table III"))
    claimed = [row[1].text for row in table.rows]
    assert "~400GB/s; 4.4s; 9x" in claimed
    assert claimed[-1] == next(one.claim for one in ASKED.claims if one.id == "infiniband_rate")


def test_both_pages_have_every_table() -> None:
    tables = paper_tables(ASKED, ROWS)
    assert [one.title for one in tables] == [one.title for one in ASKED.tables]
    for page in (tables_markdown(tables), tables_page(tables)):
        assert all(one.title.replace("'", "&#39;") in page or one.title in page for one in tables)


@pytest.mark.parametrize(
    ("words", "claims", "reason"),
    [
        ("8B | 320 GB | 4", ["table_1_7b"], "is nowhere in conf/quotations.yaml"),
        ("7B | 280GB | 4", ["tabel"], "tabel"),
    ],
)
def test_a_row_that_nobody_wrote_or_without_its_claim_is_refused(
    tmp_path: Path, words: str, claims: list[str], reason: str
) -> None:
    data = yaml.safe_load((ROOT / "conf/answers.yaml").read_text())
    data["tables"][0]["rows"] = {words: claims}
    (tmp_path / "answers.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    for name in ("quotations.yaml", "sources.yaml", "claims", "published"):
        (tmp_path / name).symlink_to(ROOT / "conf" / name)
    with pytest.raises(ConfigError, match=reason):
        load_answers(tmp_path)


RECORDS = {
    "one": [made("small", "fast", {("time", "warm"): ("s", "measured", (1.0, 2.0))}, suite="one")],
    "other": [made("large", "slow", {("bytes", ""): ("B", "calculated", (3.0,))}, suite="other")],
}


def test_every_sample_of_every_suite_is_a_row(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    line = write_measurements(tmp_path, RECORDS)
    table = pandas.read_parquet(tmp_path / "measurements.parquet")
    assert str(tmp_path / "measurements.parquet") in line
    assert list(table["suite"]) == ["one", "one", "other"]
    assert list(table["value"]) == [1.0, 2.0, 3.0]
    assert list(table["unit"]) == ["s", "s", "B"]


def test_without_pyarrow_it_is_csv_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.report.results.ENGINE", "no_such_engine")
    line = write_measurements(tmp_path, RECORDS)
    assert "throughput-harness[parquet]" in line
    assert list(pandas.read_csv(tmp_path / "measurements.csv")["value"]) == [1.0, 2.0, 3.0]
