"""Shows a running sweep: a bar on a terminal, a logged line per cell elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from harness.records import Cell, Group, Status
from harness.sweep.estimate import Countdown, SweepEstimate, as_time
from harness.sweep.executors import CellEvent, CellFinished, CellStarted
from harness.sweep.store import Store

logger = logging.getLogger(__name__)

REASON_LENGTH = 160
SHOWN = 2
"""Most running cells that are shown by name; of more, which are interleaved, the number is shown."""


def announce(lines: Iterable[str]) -> None:
    """Print what a user needs to know before a sweep."""
    for line in lines:
        logger.info(line)


class Progress:
    """Shows each event of a sweep; a context manager. `store` has the finished cells.

    `estimate` is of the cells that are still to be run, in seconds of `clock`.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        store: Store,
        estimate: SweepEstimate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cells = {cell.id: cell for group in groups for cell in group.cells}
        self._done = self._cells.keys() & store.records.keys()
        self._under_way: dict[str, Cell] = {}
        self._failed: Counter[str] = Counter()
        self._reason = ""  # of the cell that ended last
        self._clock = clock
        self._countdown = None if estimate is None else Countdown(estimate, clock())
        self._stderr = sys.stderr
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("", total=len(self._cells), completed=len(self._done), now="")
            self._bar.start()
            _move_handlers(
                self._stderr, sys.stderr
            )  # rich has put its own in place, which prints above the bar
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            _move_handlers(sys.stderr, self._stderr)
            self._bar.stop()

    def __call__(self, event: CellEvent) -> None:
        """Show what `event` changes."""
        if isinstance(event, CellStarted):
            self._done.discard(event.cell)
            self._under_way[event.cell] = self._cells[event.cell]
        elif isinstance(event, CellFinished):
            self._done.add(event.cell)
            if self._countdown is not None:
                self._countdown.finish(event.cell, self._clock())
            self._end(self._under_way.pop(event.cell), event)
        else:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=len(self._done), now=self._now())

    def _end(self, cell: Cell, ended: CellFinished) -> None:
        failed = ended.status != Status.OK
        self._failed.update([ended.status] if failed else [])
        first, *printed = ended.reason.split("\n")
        reason = f"{first} {printed[-1]}" if printed and first.endswith("last printed:") else first
        repeated = reason != "" and reason == self._reason
        self._reason = reason
        reason = "as the cell before" if repeated else reason[:REASON_LENGTH]
        line = f"{name_of(cell)}: {ended.status}{': ' + reason if reason else ''}"
        if self._bar is None:
            done = f"{len(self._done)}/{len(self._cells)}"
            level = logging.WARNING if failed else logging.INFO
            logger.log(level, "%s %s (%.1f s)%s", done, line, ended.duration_s, self._left())
        elif failed:
            self._bar.console.print(line, markup=False, highlight=False)

    def _left(self) -> str:
        """Return how many cells and minutes are left; empty after the last cell."""
        number = len(self._cells) - len(self._done)
        about = "" if self._countdown is None else f", about {as_time(self._countdown.left_s)}"
        return f"; {number} left{about}" if number else ""

    def _now(self) -> str:
        """Return the time left, the cells under way, and how many failed and how."""
        cells = list(self._under_way.values())
        under_way = ", ".join(map(name_of, cells))
        if len(cells) > SHOWN and len({cell.workload for cell in cells}) == 1:
            under_way = f"{cells[0].suite} {cells[0].workload}: {len(cells)} variants"
        left = self._left().removeprefix("; ")
        return "  ".join([left, under_way, *(f"{count} {status}" for status, count in self._failed.items())])


def name_of(cell: Cell) -> str:
    """Return a cell's name for display."""
    repeat = f" #{cell.repeat + 1}" if cell.repeat else ""
    return f"{cell.suite} {cell.workload} {cell.optimization}{repeat}"


def _move_handlers(old: TextIO, new: TextIO) -> None:
    """Redirect the log from `old` to `new`."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


def _bar() -> Any:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.BarColumn(bar_width=30),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[now]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
