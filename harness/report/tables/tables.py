"""Make tables of text from values; `markdown`, `page` and `terminal` only set them.

Every value carries its origin's mark; where there is none, a footnote gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.records import Record, Status
from harness.report.data.result_index import ResultIndex, Value, why
from harness.report.language.spec import ReportBlock, Spec
from harness.units import best_unit, counted, human, in_unit, marked, without_unit

SMALLEST = 0.001
"""Bytes that are less of a column's unit are not shown in full."""

ABSENT = ("", "–", "not run", "unknown", "unavailable")
"""What a cell without a value shows."""


class TableCell(NamedTuple):
    """One cell of a table: its text, the record it comes from, how it looks."""

    text: str
    cell: str = ""  # id of the record
    look: str = ""  # good | bad | warn | muted | word, or "" for a value
    bar: float = 0.0  # share of the longest bar of its column, where the page draws one
    note: str = ""  # the mark of a footnote, after the text


class PageControl(NamedTuple):
    """A choice among values of one input, of which the page shows the first as chosen at the beginning."""

    title: str
    choices: tuple[tuple[str, str], ...]  # as `key=value`, and as people read it
    start: str


class Picker(NamedTuple):
    """Controls on the page, and what it shows for each combination: every text is a recorded value."""

    controls: tuple[PageControl, ...]
    metrics: tuple[str, ...]
    entries: Mapping[str, tuple[str, ...]]  # combination, as its method names it, to a text per metric
    start: str
    cell: str


class Table(NamedTuple):
    """A table ready to be set."""

    id: str
    title: str
    text: str
    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    notes: tuple[str, ...] = ()
    optional: int = 0  # number of last columns that may be left out where there is no room
    picker: Picker | None = None  # above it on the page


class Footnotes:
    """Footnotes of one table: the same reason has one number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        """Return the mark of the footnote with this text."""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"


def failures(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return every cell that did not end `ok`, with its reason; those that ended alike in one row.

    Alike are repeats, and workloads on which a variant cannot run for one reason.
    """
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in index.records:
        if record.status != Status.OK:
            workload = "" if record.status == Status.UNAVAILABLE else record.cell.workload
            alike.setdefault((workload, record.cell.optimization, why(record)), []).append(record)
    rows = tuple(
        (
            TableCell(_workloads(spec, records), look="word"),
            TableCell(spec.name("optimization", variant), look="word"),
            TableCell(records[0].status.replace("_", " "), records[0].cell.id, "bad"),
            TableCell(failure_reason(records[0]) + _repeats(records), look="word"),
        )
        for (_, variant, _), records in alike.items()
    )
    text = block.text if rows else "Every cell ended ok."
    return Table(block.id, block.title, text, ("Workload", "Optimization", "Status", "Reason"), rows)


def failure_reason(record: Record) -> str:
    """Return the reason of a cell without a result, in one line."""
    return why(record).partition(": ")[2] or "no reason given"


def _workloads(spec: Spec, records: Sequence[Record]) -> str:
    return "; ".join(dict.fromkeys(spec.name("workload", record.cell.workload) for record in records))


def _repeats(records: Sequence[Record]) -> str:
    several = len(records) > 1 and records[0].status != Status.UNAVAILABLE
    return f" ({counted(len(records), 'repeat')})" if several else ""


def percent(share: float, signed: bool = False) -> str:
    """Return a share of one as a percentage."""
    return f"{without_unit(share, '1', '%', signed)} %"


def divided(value: Value, index: ResultIndex, per: str) -> Value | None:
    """Return the value over another metric of its cell, a share where units are alike; None without that."""
    by = index.first(value.workload, value.optimization, per)
    if by is None or by.median == 0:
        return None
    return value._replace(median=value.median / by.median, unit="1" if by.unit == value.unit else value.unit)


def show(value: Value, unit: str, signed: bool = False) -> str:
    """Return the value in `unit` (auto: the one that reads best) with its origin's mark."""
    if unit == "auto":
        return marked(
            human(value.median, value.unit, best_unit(value.median, value.unit), signed), value.origin
        )
    end = " %" if unit == "%" else ""
    if value.unit == "B" and 0 < in_unit(value.median, value.unit, unit) < SMALLEST and not signed:
        return marked(f"<\u00a0{SMALLEST}", value.origin)
    return marked(without_unit(value.median, value.unit, unit, signed) + end, value.origin)


def missing(index: ResultIndex, notes: Footnotes, place: Mapping[str, str], heading: str) -> TableCell:
    """Return what a column headed `heading` shows for a missing value: a word and a footnote."""
    return reasoned(notes, index.reason(**place, heading=heading))


def reasoned(notes: Footnotes, reason: tuple[str, str]) -> TableCell:
    """Return a word in a value's place, with its sentence as a footnote."""
    word, sentence = reason
    look = "warn" if word == "unavailable" else "muted" if word in ABSENT else "bad"
    return TableCell(f"{word} {notes.mark(sentence)}", look=look)
