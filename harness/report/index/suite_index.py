"""List results folders: the question, the finding in a few words, when and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from harness.report.answer.answer import finding
from harness.report.output.markdown import escape
from harness.report.output.run_line import days, machines, wrong_results
from harness.report.report_data import ReportData
from harness.report.tables.tables import Table, TableCell

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
            finding(data),
            days(data.records),
            machines(data.environment),
            len(wrong_results(data.records, data.spec.name)),
        )
        for data, name in folders
    ]


def report_links(folders: Sequence[str], rows: Sequence[IndexRow]) -> list[tuple[str, str]]:
    """Return each results folder with what a link to its report says: its question.

    Where several of these have one question, the machine and the day are with it.
    """
    known = {row.folder: row for row in rows}
    asked = Counter(known[folder].question for folder in folders if folder in known)
    links = []
    for folder in folders:
        row = known.get(folder)
        text = row.question if row else "report"
        if row and asked[row.question] > 1:
            text = f"{text} ({_device(row.machine)}, {row.date})"
        links.append((folder, text))
    return links


def _device(machine: str) -> str:
    """Return the GPUs of a machine in words, or its processor where it has none."""
    parts = machine.split(" · ")
    return next((part for part in parts if " × " in part), parts[0])


def runs_table(rows: Sequence[IndexRow]) -> Table:
    """Return the list of results folders."""
    return Table("index", "", "", HEADER, tuple(map(_cells, rows)))


def _cells(row: IndexRow) -> tuple[TableCell, ...]:
    wrong = f" ({row.wrong} wrong)" if row.wrong else ""
    link = f"[{escape(row.folder)}]({row.folder}/report.md)"
    texts = (row.question, row.finding + wrong, row.date, row.machine, link)
    return tuple(TableCell(text, look="word") for text in texts)
