"""The page of answers on made-up claims, and that with the paper's tables row by row."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pandas
import pytest
from answered import answered, paper_claim, public
from reporting import texts, tips
from synthetic import claim as judged_claim
from synthetic import made

from harness.claims.answers import answer_claims
from harness.claims.evidence import Findings
from harness.claims.judge import judge
from harness.claims.paper import load_answers
from harness.report.index.answers_page import (
    TABLES_HEADER,
    Answers,
    index_markdown,
    index_page,
    paper_tables,
    tables_markdown,
    tables_page,
)
from harness.report.index.answers_text import accepted_text, found, in_words
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


def test_bytes_per_parameter_have_their_unit_once():
    held = replace(judged_claim(40.0, tolerance=0.1, unit="B", divide_by="parameters"), per="parameter")
    first = held.interpretations[0]
    held = replace(held, interpretations=tuple(first._replace(name=w, workload=w) for w in ("v", "w")))
    count = ("1", "measured", (1e9,))
    records = [
        made(w, figures={("bytes", "way"): ("B", "measured", (value,)), ("parameters", ""): count})
        for w, value in (("v", 23.4e9), ("w", 52.98e9))
    ]
    claim = paper_claim(band=(36.0, 44.0), unit="B", per="parameter")
    (answer,) = answer_claims([claim], Findings({"invented/claim": (held, judge([held], records))}, {}))
    (best,) = found(answer)
    assert best.range == "23.4 … 53.0 bytes per parameter ᵐ"
    assert best.accepted == accepted_text(answer) == "36 … 44 bytes per parameter"


def test_reasons_have_titles_in_place_of_ids():
    claim = paper_claim(judged=("offload/anything",))
    text = in_words("no record of zero3_offload_params on gpu_32gb, and 2 more reasons", claim)
    assert text == (
        "“ZeRO-3, optimizer and parameters on host” was not run on “32 GB, one GPU”, and 2 more reasons"
    )
    said = in_words("the cell has no peak_memory by fake_step", claim)
    assert said == "the run recorded no “Device peak per rank” by “Dry run”"
    for kept in ("python -m harness suite=offload", "ask harness.fit", "no results of suite invented"):
        assert in_words(kept, claim) == kept.replace("suite invented", "invented")


def test_links_have_the_titles_of_reports_and_the_machine_where_two_are_alike():
    cpu = IndexRow("a", "How fast?", "", "1 Nov 2026", "2 cores X · 25 GB · no GPU", 0)
    gpu = IndexRow("b", "How fast?", "", "2 Nov 2026", "16 cores Y · 135 GB · 1 × Z", 0)
    assert report_links(["a"], [cpu, gpu]) == [("a", "How fast?")]
    both = [("a", "How fast? (2 cores X, 1 Nov 2026)"), ("b", "How fast? (1 × Z, 2 Nov 2026)")]
    assert report_links(["a", "b", "c"], [cpu, gpu]) == [*both, ("c", "report")]


def test_both_pages_have_the_answer_first_and_how_to_read_it_after_the_tables():
    part = next(iter(ASKED.parts))
    rows = [row(NEAR, part=part), row(NEAR, part=part)]
    answers = Answers(ASKED, rows, forest(rows), [])
    for page in (index_markdown(answers), index_page(answers)):
        places = [page.index(text) for text in ("2 claims: ", "What 2 claims accept", ASKED.parts[part])]
        places += [page.rindex("How to read this page"), page.rindex("Sentences that state nothing to test")]
        assert places == sorted(places)
    assert re.search(r"<b>1\.9×.….2\.1×.ᵖ</b>", index_page(answers))


def test_each_row_of_the_papers_tables_has_what_the_answer_of_its_claim_has():
    rows = answer_claims(ASKED.claims, Findings({}, {}))
    tables = paper_tables(ASKED, rows)
    lines = {row[1].text: row for table in tables for row in table.rows}
    shown = dict(zip(TABLES_HEADER, (cell.text for cell in lines["280GB; 4"]), strict=True))
    (answer,) = [one for one in rows if one.claim.id == "table_1_7b"]
    assert shown["Row"] == "7B"
    assert shown["What its source supports"] == answer.claim.source_says
    assert (shown["Answer"], shown["Strength"]) == (f"{answer.answer}: {answer.why}", answer.strength)
    infiniband = next(one for one in tables if one.title.startswith("Table III"))
    claimed = [row[1].text for row in infiniband.rows]
    assert "~400GB/s; 4.4s; 9x" in claimed, "a row with two claims has two lines"
    assert claimed[-1] == next(one.claim for one in ASKED.claims if one.id == "infiniband_rate")
    assert [one.title for one in tables] == [one.title for one in ASKED.tables]
    for page in (tables_markdown(tables), tables_page(tables)):
        assert all(one.title.replace("'", "&#39;") in page or one.title in page for one in tables)


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
