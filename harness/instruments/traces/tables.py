"""The tables of a breakdown as lines of text: names are shortened in the middle where they do not fit."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from harness.instruments.traces.activity import Activity
from harness.instruments.traces.breakdown import Breakdown
from harness.instruments.traces.communication import BY_NAME, HOW, recognized
from harness.instruments.traces.segments import STATE_NAMES, State
from harness.instruments.traces.trace import shortened


class TraceTable(NamedTuple):
    """A table of the breakdown: its title, column heads and rows; the first column is text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


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


ROWS = 15
"""Rows of work that are shown."""


def tables(of: Breakdown) -> list[TraceTable]:
    """Return the shares, the factors, the ranks where there are several, and the largest parts.

    Names are whole. Communication on a device has a table of its kernels.
    """
    found = [share_table(of), factor_table(of)]
    if len(of.ranks) > 1:
        found.append(rank_table(of))
    found.append(work_table(of))
    return [*found, *([communication_table(of)] if _communicates(of) else [])]


def share_table(of: Breakdown) -> TraceTable:
    """Return the shares of the step; they sum to it."""
    rows = [(share.name, _ms(share.mean_s), _percent(share.mean_s / of.step_s)) for share in of.shares]
    return TraceTable("Shares of the step", ("Share", "ms", "%"), [*rows, ("sum", _ms(of.step_s), "100.0")])


def factor_table(of: Breakdown) -> TraceTable:
    """Return the factors; each row has the time up to and with its factor."""
    rows = [(of.factors.base_name, "", _ms(of.factors.base_s))]
    rows += [(one.name, f"× {one.value:.3f}", _ms(one.time_s)) for one in of.factors.factors]
    return TraceTable("Factors to the observed time", ("Factor", "", "ms"), rows)


def rank_table(of: Breakdown) -> TraceTable:
    """Return the states of each rank in percent of its step."""
    states = [state for state in State if of.share_of(state) > 0]
    rows = [
        (f"rank {one.rank}", _ms(one.step_s), *(_percent(one.share_of(state)) for state in states))
        for one in of.ranks
    ]
    return TraceTable("Ranks", ("Rank", "ms", *(f"{STATE_NAMES[state]}, %" for state in states)), rows)


def work_table(of: Breakdown) -> TraceTable:
    """Return the largest parts by phase, layer and operation; idle time precedes its operation."""
    rows = [
        (
            " ".join(filter(None, (one.phase, one.layer, one.operation))) or "after the last kernel",
            STATE_NAMES[one.state],
            _percent(one.mean_s / of.step_s),
        )
        for one in of.work[:ROWS]
    ]
    return TraceTable("Largest parts", ("Work", "State", "%"), rows)


def communication_table(of: Breakdown) -> TraceTable:
    """Return the kernels of the first rank that communicate, and how each was recognized.

    Their times are sums of durations: kernels that run at the same time count each.
    """
    rank = of.ranks[0]
    trace, how = rank.activity.trace, rank.activity.on_device.recognized_by
    edges = np.array([rank.activity.steps[i][1:3] for i in rank.chosen], np.int64)
    events = np.flatnonzero(how > 0)
    step = np.searchsorted(edges[:, 0], trace.start_ns[events], side="right") - 1
    events = events[(step >= 0) & (trace.start_ns[events] < edges[np.maximum(step, 0), 1])]
    times: dict[tuple[str, str], list[int]] = {}
    for event in events.tolist():
        key = trace.name(event), _known_by(rank.activity, event)
        times.setdefault(key, []).append(int(trace.end_ns[event] - trace.start_ns[event]))
    rows = [
        (name, known, f"{len(one) / len(rank.chosen):.4g}", _ms(sum(one) / 1e9 / len(rank.chosen)))
        for (name, known), one in sorted(times.items(), key=lambda item: -sum(item[1]))[:ROWS]
    ]
    of_rank = f", rank {rank.rank}" if len(of.ranks) > 1 else ""
    return TraceTable(f"Communication on the device{of_rank}", ("Kernel", "Known by", "per step", "ms"), rows)


def _known_by(activity: Activity, event: int) -> str:
    """Return by what a kernel was recognized, and whether it computes, too."""
    how = int(activity.on_device.recognized_by[event])
    family = recognized(activity.trace.name(event)).family if how == BY_NAME else None
    known = f"name, {family.library}" if family else HOW[how]
    return f"{known} (both)" if activity.fused[event] else known


def _communicates(of: Breakdown) -> bool:
    return bool(of.ranks[0].activity.on_device.under_way.any())


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
