"""Tables of cells with their notes: made of values, without what has none, in parts of at most seven columns.

Every value carries its origin's mark; where there is none, a note gives the reason. Notes are numbered where
a table is printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.records import Record, Status
from harness.report.results import ResultIndex, Value, why
from harness.report.spec import Spec
from harness.units import counted, human, in_unit, marked, without_unit

SMALLEST = 0.001  # bytes that are less of a column's unit are not shown in full
ABSENT = ("", "–", "not run", "unknown", "unavailable")  # what a cell without a value shows
COLUMNS = 7  # columns of a table that are shown at once
ROWS = 15  # rows of a longer table that are shown at once
ALIKE = 3  # rows from which on a column that is the same in all of them becomes a sentence

NEEDS_GPU = re.compile(r"\bGPUs?\b|\bCUDA\b", re.IGNORECASE)


class TableCell(NamedTuple):
    """One cell of a table: its text, the record it comes from, how it looks."""

    text: str
    cell: str = ""  # id of the record
    look: str = ""  # good | bad | warn | muted | word, or "" for a value
    bar: float = 0.0  # share of the longest bar of its column, where the page draws one
    notes: tuple[str, ...] = ()  # what a reader must know of it

    def marked(self, notes: Sequence[str]) -> str:
        """Return the text with the numbers of its notes among a table's."""
        return self.text + self.marks(notes)

    def marks(self, notes: Sequence[str]) -> str:
        """Return the numbers of its notes among a table's: ` [1] [3]`."""
        return "".join(f" [{notes.index(one) + 1}]" for one in self.notes)


def word(text: str, *notes: str) -> TableCell:
    """Return a cell with words."""
    return TableCell(text, look="word", notes=notes)


DASH = TableCell("–", look="muted")


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
    optional: int = 0  # number of last columns that may be left out where there is no room
    picker: Picker | None = None  # above it on the page

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of its cells in the order in which they appear, each once."""
        return tuple(dict.fromkeys(note for row in self.rows for cell in row for note in cell.notes))

    def with_columns(self, columns: Sequence[int]) -> Table:
        """Return the table with these columns alone."""
        rows = tuple(tuple(row[i] for i in columns) for row in self.rows)
        return self._replace(header=tuple(self.header[i] for i in columns), rows=rows)


class TidyTable(NamedTuple):
    """A table to be set: `hidden` columns at its end are shown on request; sentences on what is left out."""

    table: Table
    hidden: int
    left_out: str

    @property
    def long(self) -> bool:
        """Return whether its rows are too many to be shown at once."""
        return len(self.table.rows) > ROWS + 3

    def parts(self) -> list[Table]:
        """Return the table in parts of at most seven columns, each with the columns that name its rows."""
        heads, count = heads_of(self.table.rows), len(self.table.header)
        if not self.hidden:
            return [self.table]
        starts = range(heads, count, COLUMNS - heads)
        rest = [range(start, min(start + COLUMNS - heads, count)) for start in starts]
        return [self.table.with_columns([*range(heads), *columns]) for columns in rest]


def tidy(table: Table) -> TidyTable:
    """Return the table without empty rows and columns, transposed or with last columns hidden if too wide."""
    made, left_out = trimmed(table)
    rows = made.rows
    if len(made.header) > COLUMNS and heads_of(rows) == 1 and 0 < len(rows) < COLUMNS:
        made = _transposed(made)
    return TidyTable(made, max(0, len(made.header) - COLUMNS) if rows else 0, left_out)


def trimmed(table: Table) -> tuple[Table, str]:
    """Return the table without rows and columns that have no value, and in sentences what was left out.

    A condition that all rows share is a sentence, too.
    """
    rows = [row for row in table.rows if not _empty(row)]
    left_out = _left_out([row for row in table.rows if _empty(row)])
    heads = heads_of(rows)
    filled = [i for i in range(len(table.header)) if i < heads or not all(_absent(row[i]) for row in rows)]
    alike = [i for i in filled if i >= heads and _alike([row[i] for row in rows])]
    if alike:
        same = "; ".join(f"{table.header[i]}: {rows[0][i].text}" for i in alike)
        left_out = f"{left_out} The same in every row: {same}.".strip()
    kept = [i for i in filled if i not in alike]
    optional = sum(i >= len(table.header) - table.optional for i in kept)
    shown = tuple(tuple(map(_plain, row)) for row in rows)
    return table._replace(rows=shown, optional=optional).with_columns(kept), left_out


def heads_of(rows: Sequence[Sequence[TableCell]]) -> int:
    """Return how many columns at the left name a row; at least one."""
    if not rows:
        return 1
    words = [all(row[i].look == "word" and not row[i].cell for row in rows) for i in range(len(rows[0]))]
    return max(1, next((i for i, word in enumerate(words) if not word), len(words)))


def _empty(row: Sequence[TableCell]) -> bool:
    """Return whether a row has a cell beyond its names, and none of them with a value."""
    values = row[heads_of([row]) :]
    return bool(values) and all(map(_absent, values))


def _absent(cell: TableCell) -> bool:
    return not cell.cell and cell.text in ABSENT


def _alike(cells: Sequence[TableCell]) -> bool:
    """Return whether a column states a condition that all rows share."""
    plain = all(cell == TableCell(cell.text) for cell in cells)
    return plain and len(cells) >= ALIKE and len({cell.text for cell in cells}) == 1


def _plain(cell: TableCell) -> TableCell:
    """Return a cell without a value in the one colour that such cells have."""
    return cell._replace(look="muted") if cell.text and _absent(cell) else cell


def _left_out(rows: Sequence[Sequence[TableCell]]) -> str:
    """Return how many rows are not shown, and how many of them need a GPU."""
    if not rows:
        return ""
    gpu = sum(any(NEEDS_GPU.search(note) for cell in row for note in cell.notes) for row in rows)
    rest = len(rows) - gpu
    parts = [f"{counted(gpu, 'row needs', 'rows need')} a GPU"] if gpu else []
    parts += [f"{counted(rest, 'row has', 'rows have')} no value"] if rest else []
    return f"Not shown: {' and '.join(parts)}."


def _transposed(table: Table) -> Table:
    names, *columns = zip(*table.rows, strict=True)
    rows = tuple(
        (word(head), *(cell._replace(bar=0.0) for cell in column))
        for head, column in zip(table.header[1:], columns, strict=True)
    )
    header = (table.header[0], *(cell.text for cell in names))
    return table._replace(header=header, rows=rows, optional=0)


def failure_table(spec: Spec, index: ResultIndex) -> Table:
    """Return every cell that did not end `ok`, with its reason; those that ended alike in one row.

    Alike are repeats, and workloads on which a variant cannot run for one reason.
    """
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in index.records:
        if record.status != Status.OK:
            workload = "" if record.status == Status.UNAVAILABLE else record.cell.workload
            alike.setdefault((workload, record.cell.optimization, why(record)), []).append(record)
    rows = []
    for (workload, variant, _), records in alike.items():
        on = dict.fromkeys(spec.name("workload", record.cell.workload) for record in records)
        repeats = f" ({counted(len(records), 'repeat')})" if workload and len(records) > 1 else ""
        status = TableCell(records[0].status.replace("_", " "), records[0].cell.id, "bad")
        reason = word(failure_reason(records[0]) + repeats)
        rows.append((word("; ".join(on)), word(spec.name("optimization", variant)), status, reason))
    header = ("Workload", "Optimization", "Status", "Reason")
    return Table("failures", spec.failures.title, spec.failures.text, header, tuple(rows))


def failure_reason(record: Record) -> str:
    """Return the reason of a cell without a result, in one line."""
    return why(record).partition(": ")[2] or "no reason given"


def percent(share: float, signed: bool = False) -> str:
    """Return a share of one as a percentage."""
    return f"{without_unit(share, '1', '%', signed)} %"


def divided(value: Value, index: ResultIndex, per: str) -> Value | None:
    """Return the value over another metric of its cell, a share where units are alike; None without that.

    The other is by the value's own method, or the first of its cell where that method has none.
    """
    by = index.get(*value[:2], per, value.method) or index.first(*value[:2], per)
    if by is None or by.median == 0:
        return None
    return value._replace(median=value.median / by.median, unit="1" if by.unit == value.unit else value.unit)


def show(value: Value, unit: str, signed: bool = False) -> str:
    """Return the value in `unit` (auto: the one that reads best) with its origin's mark."""
    if unit == "auto":
        text = human(value.median, value.unit, signed=signed)
    elif value.unit == "B" and 0 < in_unit(value.median, value.unit, unit) < SMALLEST and not signed:
        text = f"<\u00a0{SMALLEST}"
    else:
        text = without_unit(value.median, value.unit, unit, signed) + (" %" if unit == "%" else "")
    return marked(text, value.origin)


def missing(index: ResultIndex, place: Sequence[str], heading: str) -> TableCell:
    """Return what a column headed `heading` shows for a missing value: a word and a note.

    `place`: workload, optimization, metric and method.
    """
    workload, optimization, metric, method = place
    return reasoned(index.reason(workload, optimization, metric, method, heading))


def reasoned(reason: tuple[str, str]) -> TableCell:
    """Return a word in a value's place, with its sentence as a note."""
    word, sentence = reason
    look = "warn" if word == "unavailable" else "muted" if word in ABSENT else "bad"
    return TableCell(word, look=look, notes=(sentence,))
