"""Print the end of a sweep in at most 40 lines: the answer, one table, and where the report is."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO

from harness.report.findings import answer, answer_block
from harness.report.report_data import ReportData
from harness.report.summary import cells_line, summary
from harness.report.tables import Table, heads_of, trimmed
from harness.report.verdicts import verdict_table
from harness.units import ORIGIN_MARKS, counted, kept_together

if TYPE_CHECKING:
    from rich.console import Console

LOOKS = {"good": "green", "bad": "red", "warn": "yellow", "muted": "dim"}
WIDTH = 100  # columns at most, of a wider terminal and of what is no terminal
LINES = 40  # lines at most, but with `show=all`
NOTES = 3  # footnotes at most
NOTE_LINES = 2  # lines at most of a footnote and of a sentence on what was left out
FIXED = 3  # last columns of a table of effects that are kept as long as there is room: value, change, effect


def show(data: ReportData, page: Path, out: TextIO | None = None, everything: bool = False) -> None:
    """Print the answer, the table that it speaks of, the counts of cells and where the report is.

    `everything`: all tables, and all verdicts with a value, of any length.
    """
    from rich.console import Console
    from rich.markup import escape

    stream = out or sys.stdout
    console = Console(file=stream, highlight=False, legacy_windows=False)
    most = console.width if everything else min(console.width, WIDTH)
    width = most if stream.isatty() or (everything and "COLUMNS" in os.environ) else WIDTH
    console = Console(file=stream, width=width, highlight=False, legacy_windows=False)
    head = [line for sentence in answer(data) for line in _wrapped(sentence, width)]
    tail = [line for sentence in _tail(data, page, width, everything) for line in _wrapped(sentence, width)]
    for line in head:
        console.print(escape(line), style="bold red" if line.startswith("Wrong results") else None)
    if everything:
        _show_all(console, data)
    elif (made := _table(data)) is not None:
        room = LINES - len(head) - len(tail)
        console.print("\n".join(_lines(made, width, room, stream.isatty())), markup=False, soft_wrap=True)
    for line in tail:
        console.print(escape(line), soft_wrap=True)


def _tail(data: ReportData, page: Path, width: int, everything: bool) -> list[str]:
    left_out, cells = [*data.left_out, *data.apart], cells_line(data.records)
    if everything:
        return [cells, *left_out, data.legend, f"Report: {page}"]
    origins = {one.origin for record in data.records for one in record.measurements}
    legend = " · ".join(f"{mark} {origin}" for origin, mark in ORIGIN_MARKS.items() if origin in origins)
    last = f"Report: {page}; show=all prints every table here"
    return [cells, *(_cut(sentence, width) for sentence in left_out), legend, last]


def _wrapped(sentence: str, width: int) -> list[str]:
    """Return a sentence in lines; a value stays next to its unit, its interval and its mark."""
    kept = kept_together(sentence)
    lines = wrap(kept, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _table(data: ReportData) -> Table | None:
    """Return the table of the answer's block, else of the one marked `top`, or the first that has rows."""
    for block in filter(None, [answer_block(data), *sorted(data.blocks, key=lambda one: not one.top)]):
        made = data.table(block)
        if made is not None and made.rows:
            return trimmed(made)[0]
    return None


def _show_all(console: Console, data: ReportData) -> None:
    verdicts = [v for v in data.verdicts if v.outcome != "unavailable"]
    for made in [*map(data.table, data.blocks), verdict_table(data.spec.claims, data.claims, verdicts)]:
        if made is not None and made.rows:
            made = trimmed(made)[0]
            lines = _lines(made, console.width, 10_000, console.is_terminal, notes=len(made.notes))
            console.print("\n".join(lines), markup=False, soft_wrap=True)
    for text in summary(data):
        console.print(text, markup=False)


def fitting(made: Table, width: int) -> Table:
    """Return the table with the columns that fit: optional ones go first, then those in the middle."""
    columns = list(range(len(made.header)))
    last = columns[len(columns) - made.optional :]
    heads, notes = heads_of(made.rows), made.notes
    middle = columns[heads : max(heads, len(columns) - made.optional - FIXED)]
    texts = [made.header, *([cell.marked(notes) for cell in row] for row in made.rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for dropped in [*reversed(last), *reversed(middle)]:
        if sum(3 + widths[i] for i in columns) <= width:
            break
        columns.remove(dropped)
    return made.with_columns(columns)._replace(optional=0)


def _lines(made: Table, width: int, room: int, colours: bool, notes: int = NOTES) -> list[str]:
    """Return the table in at most `room` lines, with what is left out counted below it."""
    fitted = fitting(made, width)
    rows = fitted.rows
    used = {note for row in rows for cell in row for note in cell.notes}
    marked = [f"[{i}] {note}" for i, note in enumerate(made.notes, 1) if note in used]
    shown = [_cut(note, width) for note in marked[:notes]]
    while True:
        below = _left_out(made, fitted, len(fitted.rows) - len(rows), len(marked) - len(shown), width)
        grid = _grid(fitted._replace(rows=rows), made.notes, width, colours)
        excess = len("\n".join([*grid, *shown, *below]).splitlines()) - room
        if excess <= 0 or len(rows) <= 1:
            return [*grid, *shown, *below]
        rows = rows[: -min(max(1, excess // 2), len(rows) - 1)]


def _left_out(made: Table, fitted: Table, rows: int, notes: int, width: int) -> list[str]:
    """Return in one line what the report has more."""
    columns = len(made.header) - len(fitted.header)
    counts = ((rows, "row"), (columns, "column"), (notes, "note"))
    parts = [counted(count, f"more {what}") for count, what in counts if count > 0]
    return [_cut(f"In the report: {', '.join(parts)}.", width)] if parts else []


def _cut(text: str, width: int) -> str:
    """Return a text in lines, with what is beyond `NOTE_LINES` cut off."""
    lines = wrap(text, width, break_on_hyphens=False)
    kept = lines[:NOTE_LINES]
    return "\n".join(kept if kept == lines else [*kept[:-1], kept[-1][: width - 1] + "…"])


def _grid(made: Table, notes: Sequence[str], width: int, colours: bool) -> list[str]:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text as Words

    grid = Grid(title=made.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(made.header):
        word = bool(made.rows) and made.rows[0][i].look == "word"
        grid.add_column(head, justify="left" if word else "right", overflow="fold", no_wrap=not word)
    for row in made.rows:
        grid.add_row(*(Words(cell.marked(notes), style=LOOKS.get(cell.look, "")) for cell in row))
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=colours, highlight=False, legacy_windows=False).print(grid)
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
