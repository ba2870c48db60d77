"""Tables as lines of a terminal: names are shortened in the middle, and heads take several lines."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

from harness.instruments.traces.reading.error import shortened

LEAST_NAME = 24
"""Characters of the first column, at least."""

GAP = "  "


def terminal_width() -> int:
    """Return the columns of the terminal, 80 where there is none."""
    return max(shutil.get_terminal_size((80, 24)).columns, 2 * LEAST_NAME)


def fitted(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a table as lines of at most `width` characters.

    The first column is text. Columns that do not fit follow below, with the first column again.
    """
    heads = [head[0], *(_narrow(name, [row[i] for row in rows]) for i, name in enumerate(head) if i)]
    sizes = [
        max(len(line) for cell in (heads[i], *(row[i] for row in rows)) for line in cell.split("\n"))
        for i in range(len(head))
    ]
    lines: list[str] = []
    for columns in _blocks(sizes, width):
        taken = sum(sizes[i] + len(GAP) for i in columns)
        first = min(sizes[0], width - taken)
        table = [[shortened_name(row[0], first), *(row[i] for i in columns)] for row in (heads, *rows)]
        lines += aligned(table)
    return lines


def shortened_name(name: str, length: int) -> str:
    """Return a name of at most so many characters.

    Parameters go first, then the middle of the template arguments, then the middle of all.
    """
    if len(name) > length:
        name, _ = _without(name, "()")
    if len(name) > length:
        name, arguments = _without(name, "<>")
        name = name.replace("<…>", f"<{shortened(arguments, max(length - len(name) + 1, 3))}>", 1)
        name = name if len(name) <= length else _without(name, "<>")[0]
    return shortened(name, length)


def _without(name: str, brackets: str) -> tuple[str, str]:
    """Return a name with an ellipsis for what its outermost brackets contain, and that of the first ones."""
    opening, closing = brackets[0], brackets[1]
    shown: list[str] = []
    contents: list[str] = []
    depth = 0
    for letter in name:
        depth -= int(letter == closing and depth > 0)
        if depth:
            contents[-1] += letter
        else:
            shown.append(letter)
        if letter == opening:
            if not depth:
                shown.append("…")
                contents.append("")
            depth += 1
    return "".join(shown), contents[0] if contents else ""


def _narrow(name: str, cells: Sequence[str]) -> str:
    """Return a head in lines that are no wider than its widest word or cell."""
    width = max([10, *map(len, cells), *map(len, name.split())])
    return "\n".join(textwrap.wrap(name, width)) or name


def _blocks(sizes: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield the columns after the first that fit next to one another."""
    room = width - min(LEAST_NAME, sizes[0])
    block: list[int] = []
    for i in range(1, len(sizes)):
        if block and sum(sizes[j] + len(GAP) for j in [*block, i]) > room:
            yield block
            block = []
        block.append(i)
    yield block


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns, the first to the left; a cell may have several lines."""
    split = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for row in split for line in row[i]) for i in range(len(rows[0]))]
    lines = []
    for row in split:
        for k in range(max(map(len, row))):
            texts = [cell[k] if k < len(cell) else "" for cell in row]
            shown = [
                text.rjust(width) if i else text.ljust(width)
                for i, (text, width) in enumerate(zip(texts, widths, strict=True))
            ]
            lines.append(GAP.join(shown).rstrip())
    return lines
