"""What the tests of the report share: an invented memory run, judged, and readers of what is written."""

from __future__ import annotations

import statistics
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from synthetic import memory_records

from harness.claims.judge import judge
from harness.claims.load import load_claims
from harness.records import Record, measurement
from harness.report import gather
from harness.report.report_data import ReportData
from harness.report.spec import Block
from harness.units import ORIGIN_MARKS

SVG = "{http://www.w3.org/2000/svg}"
MARKS = "".join(ORIGIN_MARKS.values())


def found(records: list[Record] | None = None, folder: Path = Path()) -> ReportData:
    records = memory_records() if records is None else records
    return gather("memory", records, judge(load_claims("memory"), records), folder)


def block(findings: ReportData, id: str) -> Block:
    return next(one for one in findings.blocks if one.id == id)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def recorded(records: list[Record], workload: str, variant: str, metric: str, method: str) -> float:
    (record,) = [r for r in records if (r.cell.workload, r.cell.optimization) == (workload, variant)]
    one = measurement(record, metric, method)
    assert one is not None
    return statistics.median(one.samples)


def drawn(findings: ReportData, id: str) -> ElementTree.Element:
    figure = findings.figure(block(findings, id))
    assert figure is not None
    return ElementTree.fromstring(figure.svg)


def points(tree: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """Return the tooltip of each drawn point with its position: x to the right, y downwards."""
    return {
        tip(use): (float(use.attrib["x"]), float(use.attrib["y"]))
        for use in tree.iter(f"{SVG}use")
        if use.find(f"{SVG}title") is not None
    }


def tips(tree: ElementTree.Element) -> list[str]:
    return [tip(title) for title in tree.iter(f"{SVG}title")]


def texts(tree: ElementTree.Element) -> list[str]:
    return [tip(text) for text in tree.iter(f"{SVG}text")]


def tip(shape: ElementTree.Element) -> str:
    return "".join(shape.itertext()).strip()


class Reader(HTMLParser):
    """Collects ids, links, whatever could load something, and whether tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.scripts = 0
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a":
            self.links.append(given.get("href", ""))
        self.loads += [given[name] for name in ("src", "srcset", "data", "action") if name in given]
        self.loads += [tag] if tag in ("link", "iframe", "img", "object", "embed", "base", "form") else []
        self.scripts += tag == "script"
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read_page(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader
