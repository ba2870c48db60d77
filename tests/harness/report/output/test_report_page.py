"""The page and the Markdown: whole, self-contained, every record and verdict on them."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from reporting import found, read_page

from harness.report import write_report
from harness.report.verdicts import judged
from harness.units import LEGEND


def test_the_page_needs_nothing_else_and_leads_to_every_record(tmp_path: Path) -> None:
    findings = found()
    text = write_report(tmp_path, findings).read_text()
    reader = read_page(text)
    assert reader.open == []
    assert reader.loads == []
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")  # its own clip paths
    assert len(reader.ids) == len(set(reader.ids))
    inner = {link[1:] for link in reader.links if link.startswith("#")}
    assert inner <= set(reader.ids)
    assert {f"r-{record.cell.id}" for record in findings.records} <= set(reader.ids)
    assert {link for link in reader.links if not link.startswith("#")} == {"records.jsonl", "verdicts.json"}
    assert LEGEND in text


def test_what_a_record_says_is_text_and_never_markup(tmp_path: Path) -> None:
    text = write_report(tmp_path, found()).read_text()
    reader = read_page(text)
    assert reader.scripts == 1  # the page's own
    assert any("<script>alert('@ink | 1')</script>" in words for words in reader.words)
    markdown = (tmp_path / "report.md").read_text()
    assert "<script>" not in markdown
    assert "@ink \\| 1" in markdown


def test_every_sample_is_on_the_page_as_recorded(tmp_path: Path) -> None:
    findings = found()
    text = write_report(tmp_path, findings).read_text()
    for record in findings.records:
        for one in record.measurements:
            assert repr(one.samples[0]) in text


def test_every_verdict_is_in_the_page_the_markdown_and_the_json(tmp_path: Path) -> None:
    findings = found()
    page = read_page(write_report(tmp_path, findings).read_text())
    words = " ".join(page.words)
    markdown = (tmp_path / "report.md").read_text()
    rows = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    sentences = [one.sentence(v) for one in judged(findings.claims, findings.verdicts) for v in one.verdicts]
    assert len(rows) == len(findings.verdicts)
    for sentence, row in zip(sentences, rows, strict=True):
        assert sentence in words
        assert sentence in markdown
        assert row["sentence"] == sentence
        assert row["source_says"]
    for claim in findings.claims:
        for caveat in claim.caveats:
            assert caveat in words
            assert caveat in markdown


def test_tables_of_the_markdown_are_whole(tmp_path: Path) -> None:
    write_report(tmp_path, found())
    lines = (tmp_path / "report.md").read_text().splitlines()
    for above, line in pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            count = len(re.findall(r"(?<!\\)\|", above))
            assert count == len(re.findall(r"(?<!\\)\|", line)), line
    for name in re.findall(r"\]\((figures/[^)]+)\)", "\n".join(lines)):
        ElementTree.parse(tmp_path / name)
