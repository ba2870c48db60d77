"""List several results folders on one page: the question, the finding in a few words, when and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.report.markdown import answers, escape, grid
from harness.report.page import render
from harness.report.report_data import ReportData
from harness.report.run_line import days, machines, wrong_results
from harness.report.tables import Table, TableCell

TITLE = "Results by question"
WORDS = 12
"""A finding has at most so many words."""

HEADER = ("Question", "Finding", "Date", "Machine", "Results")


class IndexRow(NamedTuple):
    """One results folder in the index."""

    folder: str
    question: str
    finding: str
    date: str
    machine: str
    wrong: int


def index_rows(folders: Sequence[tuple[ReportData, str]]) -> list[IndexRow]:
    """Return a row per results folder, given with its name, in their order."""
    return [
        IndexRow(
            name,
            data.spec.title,
            finding(answers(data)),
            days(data.records),
            machines(data.environment),
            len(wrong_results(data.records, data.spec.name)),
        )
        for data, name in folders
    ]


def finding(sentences: Sequence[str]) -> str:
    """Return the first sentence in at most twelve words, cut at a comma where it is longer."""
    first = sentences[0].partition(". ")[0].removesuffix(".") if sentences else ""
    words = first.split()
    if len(words) <= WORDS:
        return first
    kept = words[:WORDS]
    ends = [i for i, word in enumerate(kept) if word[-1] in ",;:"]
    return " ".join(kept[: ends[-1] + 1]).rstrip(",;:") if ends else " ".join(kept[:-1]) + " …"


def index_page(rows: Sequence[IndexRow]) -> str:
    """Return index.html."""
    return render("index.html.j2", title=TITLE, header=HEADER, rows=rows)


def index_markdown(rows: Sequence[IndexRow]) -> str:
    """Return index.md."""
    table = Table("index", TITLE, "", HEADER, tuple(map(_cells, rows)))
    return f"# {TITLE}\n\n{grid(table)}\n"


def _cells(row: IndexRow) -> tuple[TableCell, ...]:
    wrong = f" ({row.wrong} wrong)" if row.wrong else ""
    link = f"[{escape(row.folder)}]({row.folder}/report.md)"
    texts = (row.question, row.finding + wrong, row.date, row.machine, link)
    return tuple(TableCell(text, look="word") for text in texts)
