"""The page of answers on made-up claims, and that with the paper's tables row by row."""

from dataclasses import replace
from xml.etree import ElementTree

import pandas
import pytest
from answered import answered, paper_claim, public
from reporting import texts, tips
from synthetic import made

from harness.claims.answers import answer_claims
from harness.claims.evidence import Findings
from harness.claims.paper import load_answers
from harness.report.index.answers_page import (
    TABLES_HEADER,
    paper_tables,
)
from harness.report.index.answers_text import in_words
from harness.report.index.forest import NARROW, WIDE, forest
from harness.report.index.suite_index import IndexRow, report_links
from harness.report.results import write_measurements

NEAR = public(values={"a": 2.0, "b": 2.1, "c": 1.9})
LONG = (
    "It is twice as fast on every kind of accelerator that has been sold since there are accelerators at all"
)
ASKED = load_answers()


def row(*records, **changes):
    return answered(paper_claim(public=records, judged=(), **changes))


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_every_range_is_drawn_and_what_lies_far_outside_has_its_value_and_no_label_is_cut(size):
    far = public(False, of="far off", values={"x": 500.0})
    low = public(False, of="far below", values={"y": 0.004, "z": 1.0})
    tree = ElementTree.fromstring(forest([row(NEAR, far, low), row(NEAR, claim=LONG)], size).svg)
    for record in ("of a GPU: a: 2×, b: 2.1×, c: 1.9×", "far off: x: 500×", "far below: y: 0.004×, z: 1×"):
        assert record in "\n".join(tips(tree))
    assert {"500×", "0.004×"} <= set(texts(tree))
    assert LONG in " ".join(texts(tree))
    assert not [text for text in texts(tree) if text.endswith("…")]
    within = forest([row(NEAR, replace(far, values={"x": 5.0})), row(NEAR)], size)
    assert "500×" not in texts(ElementTree.fromstring(within.svg))
    assert forest([], size) is None


def test_reasons_have_titles_in_place_of_ids():
    claim = paper_claim(judged=("offload/anything",))
    reasons = {
        "no record of zero3_offload_params on gpu_32gb": (
            "no record of “ZeRO-3, optimizer and parameters on host” on “32 GB, one GPU”"
        ),
        "the cell has no peak_memory by fake_step": "the cell has no “Device peak per rank” by “Dry run”",
        "python -m harness suite=offload": "python -m harness suite=offload",
    }
    assert [in_words(reason, claim) for reason in reasons] == list(reasons.values())


def test_links_have_the_titles_of_reports_and_the_machine_where_two_are_alike():
    cpu = IndexRow("a", "How fast?", "", "1 Nov 2026", "2 cores X · 25 GB · no GPU", 0)
    gpu = IndexRow("b", "How fast?", "", "2 Nov 2026", "16 cores Y · 135 GB · 1 × Z", 0)
    both = [("a", "How fast? (2 cores X, 1 Nov 2026)"), ("b", "How fast? (1 × Z, 2 Nov 2026)")]
    assert report_links(["a", "b", "c"], [cpu, gpu]) == [*both, ("c", "report")]


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
