"""Print a run's tables and verdicts on the terminal; plain lines where standard output is none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from harness.report.report_data import ReportData
from harness.report.spec import ReportBlock
from harness.report.summary import cells_line, summary
from harness.report.tables import Table, TableCell
from harness.report.verdicts import verdict_table
from harness.units import counted

LOOKS = {"good": "green", "bad": "red", "warn": "yellow", "muted": "dim"}
WIDTH = 100
"""Columns that a table with optional columns keeps to."""

PLAIN_WIDTH = 400
"""Columns where the output is no terminal: wide enough that no line is broken."""


def show(data: ReportData, page: Path, out: TextIO | None = None) -> None:
    """Print the tables marked `terminal`, the verdicts, the summary, and where the report is."""
    from rich.console import Console
    from rich.markup import escape

    stream = out or sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    console = Console(file=stream, width=width, highlight=False, legacy_windows=False)
    for block in data.blocks:
        if block.kind == "verdicts" or block.fields.get("terminal"):
            made = with_values(block, data) if block.kind == "verdicts" else data.table(block)
            if made is not None and made.rows:
                _print(console, made)
    for card in summary(data):
        console.print(f"[bold]{escape(card.question)}[/] {escape(card.answer)}")
    console.print(escape(cells_line(data.records)))
    for sentence in data.left_out:
        console.print(escape(sentence), soft_wrap=True)
    console.print(f"[dim]{escape(data.legend)}[/]")
    console.print(f"[bold]Report:[/] {escape(str(page))}", soft_wrap=True)


def with_values(block: ReportBlock, data: ReportData) -> Table:
    """Return the verdicts that have a value; the summary counts those that have none."""
    return verdict_table(block, data.claims, [v for v in data.verdicts if v.outcome != "unavailable"])


def fitting(made: Table, width: int) -> Table:
    """Return the table as it is, without its optional columns, or transposed: the first that fits `width`."""
    full = [tuple(TableCell(head, look="word") for head in made.header), *made.rows]
    turned = list(zip(*full, strict=True))
    for left_out in range(made.optional + 1):
        kept = [row[: len(row) - left_out] for row in full]
        if _width(kept) <= width or (left_out == made.optional > 0):
            return made._replace(header=made.header[: len(kept[0])], rows=tuple(kept[1:]))
    if _width(turned) > width:
        return made
    header = tuple(cell.text for cell in turned[0])
    return made._replace(header=header, rows=tuple(turned[1:]))


def _width(rows: Sequence[Sequence[TableCell]]) -> int:
    return sum(3 + max(len(cell.text + cell.note) for cell in column) for column in zip(*rows, strict=True))


def _print(console: object, made: Table) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text as Words

    assert isinstance(console, Console)
    columns = len(made.header)
    made = fitting(made, min(console.width, WIDTH) if made.optional else console.width)
    more = columns - len(made.header) if made.optional else 0
    grid = Grid(title=made.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(made.header):
        word = made.rows[0][i].look == "word"
        grid.add_column(head, justify="left" if word else "right", overflow="fold")
    for row in made.rows:
        grid.add_row(*(Words(cell.text + cell.note, style=LOOKS.get(cell.look, "")) for cell in row))
    console.print(grid)
    if more:
        console.print(
            Words(f"{counted(more, 'more column is', 'more columns are')} in the report", style="dim")
        )
    for i, note in enumerate(made.notes, 1):
        console.print(Words(f"[{i}] {note}", style="dim"))
