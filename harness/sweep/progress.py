"""What a sweep prints: its plan before it runs, and its progress while it runs.

Progress is a bar on a terminal, a logged line per cell elsewhere.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TextIO

from harness.config.run import Run
from harness.records import Cell, Group, Record, Status
from harness.sweep.executors import CellEvent, CellFinished, CellStarted
from harness.sweep.plan import Basis, Countdown, SweepEstimate, as_time
from harness.sweep.store import Store
from harness.units import counted

NAMES = 6  # names of cells in one line; of more, their number is given


def announcement(
    run: Run,
    groups: Sequence[Group],
    estimate: SweepEstimate,
    not_tried: Mapping[str, str],
    records: Mapping[str, Record],
) -> list[str]:
    """Return the lines printed before a sweep: the number of cells, the duration, cells that may time out.

    `not_tried`: cells that are recorded as unavailable without being run, and why; `records`: earlier ones.
    """
    cells = [cell for group in groups for cell in group.cells]
    done = len(cells) - len(estimate.cells) - len(not_tried)
    counts = f"{run.suite}: {counted(len(cells), 'cell')}" + (f", {done} done already" if done else "")
    if not estimate.cells:
        lines = [f"{counts}: nothing to run"]
    else:
        bases = [f"{counted(n, 'cell')} of {basis}" for basis in Basis if (n := estimate.bases[basis])]
        about = f"about {as_time(estimate.seconds)} (from {', '.join(bases)})"
        lines = [f"{counts}, {len(estimate.cells)} to run: {about}"]
    limit = f"limits.timeout_s={run.limits.timeout_s:g}"
    again = [cell for cell in cells if cell.id in estimate.cells and cell.id in records]
    if again:
        lines.append(f"{counted(len(again), 'cell')} to run again: {_ends(again, records)}")
    lines += run.left_out
    if late := [cell for cell in cells if cell.id in estimate.cells and estimate.cells[cell.id].times_out]:
        lines.append(f"expected to run into {limit}: {_names(late)}")
    if not_tried:
        names = _names([cell for cell in cells if cell.id in not_tried])
        lines.append(f"{counted(len(not_tried), 'cell')} planned as unavailable: {names}")
        lines += sorted(set(not_tried.values()))[:NAMES]
    return lines


def plan_lines(
    run: Run,
    groups: Sequence[Group],
    estimate: SweepEstimate,
    records: Mapping[str, Record],
    not_tried: Mapping[str, str],
) -> Iterator[str]:
    """Yield the full plan, for plan=true."""
    cells = [cell for group in groups for cell in group.cells]
    of_workload = defaultdict(list)
    for cell in cells:
        of_workload[cell.workload].append(cell)
    everywhere = len(cells) == len(of_workload) * len(run.variants) * run.repeats
    matrix = f"{counted(len(of_workload), 'workload')} × {counted(len(run.variants), 'variant')}"
    where = "" if everywhere else " where they apply"
    yield f"{run.suite}: {matrix}{where} × {counted(run.repeats, 'repeat')}, into {run.out}"
    yield f"variants: {', '.join(variant.name for variant in run.variants)}"
    yield ""
    width = max((len(name) for name in ("workload", *of_workload)), default=0)
    yield f"{'workload':{width}}  cells   done  to run   about"
    for name, own in of_workload.items():
        finished = sum(cell.id not in estimate.cells and cell.id not in not_tried for cell in own)
        todo = [estimate.cells[cell.id] for cell in own if cell.id in estimate.cells]
        time = as_time(sum(one.seconds for one in todo) / estimate.workers) if todo else "–"
        yield f"{name:{width}}  {len(own):5}  {finished:5}  {len(todo):6}   {time}"
    yield ""
    yield from announcement(run, groups, estimate, not_tried, records)
    done = [cell for cell in cells if cell.id not in estimate.cells and cell.id not in not_tried]
    if done:
        yield f"skipped: {counted(len(done), 'cell')} done already ({_ends(done, records)}), in {run.out}"
    ended = [records[cell.id] for cell in done if cell.id in records]
    reasons = Counter(record.reason for record in ended if record.status == Status.UNAVAILABLE)
    for reason, count in reasons.most_common(NAMES):
        yield f"unavailable: {counted(count, 'cell')}: {reason}"
    yield "nothing was run: plan=true"


def _ends(cells: Sequence[Cell], records: Mapping[str, Record]) -> str:
    ends = Counter(records[cell.id].status for cell in cells if cell.id in records)
    return ", ".join(f"{count} {status}" for status, count in ends.items())


def _names(cells: Sequence[Cell]) -> str:
    names = list(dict.fromkeys(f"{cell.workload} {cell.optimization}" for cell in cells))
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


logger = logging.getLogger(__name__)

REASON_LENGTH = 160
SHOWN = 2  # most running cells that are shown by name; of more, which are interleaved, the number is shown


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
        estimate: SweepEstimate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cells = {cell.id: cell for group in groups for cell in group.cells}
        self._done = self._cells.keys() & store.records.keys()
        self._under_way: dict[str, Cell] = {}
        self._failed: Counter[str] = Counter()
        self._reason = ""  # of the cell that ended last
        self._clock = clock
        self._countdown = Countdown(estimate, clock())
        self._stderr = sys.stderr
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("", total=len(self._cells), completed=len(self._done), now="")
            self._bar.start()
            _move_handlers(self._stderr, sys.stderr)  # rich's own, which prints above the bar
        return self

    def __exit__(self, *exception: object) -> None:
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
        return f"; {number} left, about {as_time(self._countdown.left_s)}" if number else ""

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
