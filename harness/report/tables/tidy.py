"""Leave out of a table what has no value, and fit what is left to at most seven columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from harness.report.tables.tables import ABSENT, Table, TableCell
from harness.units import counted

COLUMNS = 7
"""Columns of a table that are shown at once."""

ROWS = 15
"""Rows of a longer table that are shown at once."""

ALIKE = 3
"""Rows from which on a column that is the same in all of them becomes a sentence."""

NEEDS_GPU = re.compile(r"\bGPUs?\b|\bCUDA\b", re.IGNORECASE)
_NOTE = re.compile(r" \[(\d+)\]")


class TidyTable(NamedTuple):
    """A table to be set: `hidden` columns at its end are shown on request; sentences on what is left out."""

    table: Table
    hidden: int
    left_out: str

    @property
    def long(self) -> bool:
        """Return whether its rows are too many to be shown at once."""
        return len(self.table.rows) > ROWS + 3


def tidy(table: Table) -> TidyTable:
    """Return the table without empty rows and columns, transposed or with last columns hidden if too wide."""
    made, left_out = trimmed(table)
    rows = made.rows
    if len(made.header) > COLUMNS and heads_of(rows) == 1 and 0 < len(rows) < COLUMNS:
        made = _transposed(made)
    return TidyTable(made, max(0, len(made.header) - COLUMNS) if rows else 0, left_out)


def trimmed(table: Table) -> tuple[Table, str]:
    """Return the table without rows and columns that have no value, and in sentences what was left out.

    Its footnotes are numbered anew. A condition that all rows share is a sentence, too.
    """
    rows = [row for row in table.rows if not _empty(row)]
    left_out = _left_out([row for row in table.rows if _empty(row)], table.notes)
    heads = heads_of(rows)
    filled = [i for i in range(len(table.header)) if i < heads or any(not _absent(row[i]) for row in rows)]
    alike = [i for i in filled if i >= heads and _alike([row[i] for row in rows])]
    if alike:
        same = "; ".join(f"{table.header[i]}: {rows[0][i].text}" for i in alike)
        left_out = f"{left_out} The same in every row: {same}.".strip()
    kept = [i for i in filled if i not in alike]
    header = tuple(table.header[i] for i in kept)
    optional = sum(i >= len(table.header) - table.optional for i in kept)
    shown = tuple(tuple(_plain(row[i]) for i in kept) for row in rows)
    return _numbered(table._replace(header=header, rows=shown, optional=optional)), left_out


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
    return not cell.cell and _NOTE.sub("", cell.text).strip() in ABSENT


def _alike(cells: Sequence[TableCell]) -> bool:
    """Return whether a column states a condition that all rows share."""
    plain = all(not cell.look and not cell.bar and not cell.cell and not cell.note for cell in cells)
    return plain and len(cells) >= ALIKE and len({cell.text for cell in cells}) == 1


def _plain(cell: TableCell) -> TableCell:
    """Return a cell without a value in the one colour that such cells have."""
    return cell._replace(look="muted") if cell.text and _absent(cell) else cell


def _left_out(rows: Sequence[Sequence[TableCell]], notes: Sequence[str]) -> str:
    """Return how many rows are not shown, and how many of them need a GPU."""
    if not rows:
        return ""
    gpu = sum(any(NEEDS_GPU.search(notes[i]) for cell in row for i in _marks(cell)) for row in rows)
    rest = len(rows) - gpu
    parts = [f"{counted(gpu, 'row needs', 'rows need')} a GPU"] if gpu else []
    parts += [f"{counted(rest, 'row has', 'rows have')} no value"] if rest else []
    return f"Not shown: {' and '.join(parts)}."


def _marks(cell: TableCell) -> list[int]:
    return [int(number) - 1 for number in _NOTE.findall(f" {cell.text}{cell.note}")]


def _numbered(table: Table) -> Table:
    """Return the table with the footnotes that are still referred to, numbered in the order they appear."""
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f" [{numbers.setdefault(table.notes[int(found[1]) - 1], len(numbers) + 1)}]"

    def renumbered(text: str) -> str:
        return _NOTE.sub(number, text)

    if not table.notes:
        return table
    rows = tuple(
        tuple(cell._replace(text=renumbered(cell.text), note=renumbered(cell.note)) for cell in row)
        for row in table.rows
    )
    return table._replace(rows=rows, notes=tuple(numbers))


def _transposed(table: Table) -> Table:
    """Return the table with its columns as rows."""
    columns = list(zip(*table.rows, strict=True))
    rows = tuple(
        (TableCell(head, look="word"), *(cell._replace(bar=0.0) for cell in column))
        for head, column in zip(table.header[1:], columns[1:], strict=True)
    )
    return table._replace(
        header=(table.header[0], *(cell.text for cell in columns[0])), rows=rows, optional=0
    )


def split(made: TidyTable) -> list[Table]:
    """Return the table in parts of at most seven columns, each with the columns that name its rows."""
    table = made.table
    heads = heads_of(table.rows)
    wide = COLUMNS - heads
    starts = range(heads, len(table.header), wide) if made.hidden else range(heads, heads + 1)
    if not made.hidden:
        return [table]
    names = list(range(heads))
    parts = [[*names, *range(start, min(start + wide, len(table.header)))] for start in starts]
    return [
        table._replace(
            header=tuple(table.header[i] for i in part),
            rows=tuple(tuple(row[i] for i in part) for row in table.rows),
        )
        for part in parts
    ]
