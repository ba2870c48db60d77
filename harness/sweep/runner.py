"""Cells in, records out: pass what is still to be run to the executor and write each cell's one record.

Between plan and store. Knows neither where children run nor what they do.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from harness.records import LOST, Cell, Group, Limits, Reading, Record, Status, digest, gather, is_lost
from harness.sweep.environment import Environment, from_dict
from harness.sweep.executors import (
    CellEnvironment,
    CellEvent,
    CellFinished,
    CellNote,
    CellReading,
    CellStarted,
    Conditions,
    Executor,
    now,
)
from harness.sweep.executors.job_folder import alike
from harness.sweep.store import Store
from harness.units import counted

NOT_TRIED = "not tried"  # start of the reason of a cell that was not tried


class SkipRules:
    """Decides from the ends of cells how later ones would end; its only state is what it has noted.

    A cell that cannot run here cannot run in its further repeats. `size_fields`: numeric fields of a
    workload. Workloads that agree in every other field except the source are of one kind, and one in which
    none of these is smaller than in another that ran out of memory would run out too. Without fields every
    size is tried. `predicted`: the ids of cells that are not tried at all, and why.
    """

    def __init__(self, size_fields: Sequence[str], predicted: Mapping[str, str] = {}) -> None:
        self._predicted = predicted
        self._grows_by = size_fields
        self._too_large: dict[str, list[Cell]] = {}
        self._unavailable: dict[str, str] = {}

    def note(self, record: Record) -> None:
        """Remember the cells that could not run, and those that ran out of memory when they were tried."""
        cell = record.cell
        if record.status == Status.UNAVAILABLE and not record.reason.startswith(LOST):
            self._unavailable[_same(cell)] = record.reason
        tried = record.status == Status.OUT_OF_MEMORY and not record.reason.startswith(NOT_TRIED)
        if self._grows_by and tried:
            self._too_large.setdefault(self._kind(cell), []).append(cell)

    def skip_reason(self, cell: Cell) -> tuple[Status, str] | None:
        """Return how `cell` would end, and why; None where it must be tried."""
        if cell.id in self._predicted:
            return Status.UNAVAILABLE, self._predicted[cell.id]
        if _same(cell) in self._unavailable:
            return Status.UNAVAILABLE, self._unavailable[_same(cell)]
        for known in self._too_large.get(self._kind(cell), ()) if self._grows_by else ():
            if all(a >= b for a, b in zip(self._sizes(cell), self._sizes(known), strict=True)):
                before = f"{known.optimization} ran out of memory on {known.workload}"
                if known.workload == cell.workload:
                    return Status.OUT_OF_MEMORY, f"{NOT_TRIED} again: {before}"
                sizes = zip(self._grows_by, self._sizes(known), strict=True)
                size = ", ".join(f"{name} {value:g}" for name, value in sizes)
                return Status.OUT_OF_MEMORY, f"{NOT_TRIED}: {before}, which is no larger ({size})"
        return None

    def _kind(self, cell: Cell) -> str:
        workload = cell.config["workload"]
        alike = {name: value for name, value in workload.items() if name not in (*self._grows_by, "source")}
        return digest([cell.optimization, cell.config.get("settings"), alike])

    def _sizes(self, cell: Cell) -> list[float]:
        return [float(cell.config["workload"][name]) for name in self._grows_by]


def _same(cell: Cell) -> str:
    return digest([cell.suite, cell.workload, cell.optimization, cell.config])


logger = logging.getLogger(__name__)

TIME_IS_UP = signal.SIGXCPU
"""A preset's budget is spent; the kernel's signal for a time limit, which Python's own timers do not use."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, TIME_IS_UP)


class Interrupted(SystemExit):
    """One of `ENDING_SIGNALS` ended the sweep; exits with 128 plus the signal's number, as shells expect."""


@dataclass(slots=True)
class _Draft:
    """The state of a running cell."""

    at: str
    readings: list[Reading] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    conditions: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""  # digest; empty: this machine's


def run(
    groups: Sequence[Group],
    store: Store,
    executor: Executor,
    limits: Limits,
    environment: Environment,
    on_event: Callable[[CellEvent], None] = lambda event: None,
    size_fields: Sequence[str] = (),
    unavailable: Mapping[str, str] = {},
    notes: Mapping[str, str] = {},
    retry: Sequence[str] = (),
) -> None:
    """Run every cell that has no record yet, and append its record as soon as it ends.

    `on_event` gets each event; a `CellFinished` once its record is on the disk. `size_fields`: see
    `SkipRules`, by which cells whose end is known from another's are not tried. `unavailable`: cells that
    are not tried, and why; `notes`: notes for the records of others; both by the cell's id. `retry`: see
    `pending`; the earlier record of a cell that is tried again stays in the file, before the later one.
    Raises `StoreError` where a record cannot be written, `Interrupted` on `ENDING_SIGNALS`; either
    way no child is left, and what had ended has its record.
    """
    store.write_environment(environment)
    nodes = alike(store.folder, environment)
    waiting = pending(groups, store.records, limits, environment.digest, nodes, retry)
    cells = {cell.id: cell for group in waiting for cell in group.cells}
    drafts: dict[str, _Draft] = {}
    skip = SkipRules(size_fields, unavailable)
    for cell in (cell for group in groups for cell in group.cells):
        if cell.id in store.records and cell.id not in cells:
            skip.note(store.records[cell.id])
    passed_over: list[CellEvent] = []
    with (
        _Signals() as signals,
        closing(executor.run(_to_try(waiting, skip, passed_over), limits, len(waiting) > 1)) as events,
    ):
        for event in _both(events, passed_over):
            if isinstance(event, CellFinished):
                draft = drafts.pop(event.cell)
                if event.cell in notes and event.status == Status.OK:
                    draft.notes.append(notes[event.cell])
                record = _record(cells.pop(event.cell), draft, event, limits, environment.digest)
                skip.note(record)
                with signals.deferred():
                    store.append(record)
            else:
                if isinstance(event, CellEnvironment):
                    store.write_environment(from_dict(event.environment))
                _note(drafts, event)
            on_event(event)
    if cells:
        raise RuntimeError(f"the executor did not end {counted(len(cells), 'cell')}: {', '.join(cells)}")


def _to_try(groups: Iterable[Group], skip: SkipRules, passed_over: list[CellEvent]) -> Iterator[Group]:
    """Yield the groups without the cells that need not be tried; those go to `passed_over`."""
    for group in groups:
        ends = {cell.id: skip.skip_reason(cell) for cell in group.cells}
        for cell, end in ends.items():
            if end is not None:
                passed_over += [CellStarted(cell, now()), CellFinished(cell, *end, 0.0)]
        yield group._replace(cells=tuple(cell for cell in group.cells if ends[cell.id] is None))


def _both(events: Iterable[CellEvent], passed_over: list[CellEvent]) -> Iterator[CellEvent]:
    """Yield the executor's events, and those of the cells skipped meanwhile."""
    for event in events:
        yield event
        while passed_over:
            yield passed_over.pop(0)
    yield from passed_over


def pending(
    groups: Sequence[Group],
    records: Mapping[str, Record],
    limits: Limits,
    environment: str,
    nodes: Set[str] = frozenset(),
    retry: Sequence[str] = (),
) -> list[Group]:
    """Return what is left of `groups`, each cell once; pure.

    A cell is run again if it exceeded other limits than these, was unavailable in another environment than
    this and those of the cluster's `nodes`, was ended by something outside, or has one of the statuses in
    `retry`; and if it is interleaved with one that is.
    """
    seen: set[str] = set()
    left = []
    for group in groups:
        fresh = [cell for cell in group.cells if cell.id not in seen]
        known = {environment, *nodes}
        cells = [cell for cell in fresh if not _is_valid(records.get(cell.id), limits, known, retry)]
        seen.update(cell.id for cell in fresh)
        if cells and group.sampling is not None:
            planned = {cell.id for cell in cells}
            cells = [cell for cell in fresh if cell.id in planned or records[cell.id].status == Status.OK]
        if cells:
            left.append(group._replace(cells=tuple(cells)))
    return left


def _is_valid(record: Record | None, limits: Limits, environments: Set[str], retry: Sequence[str]) -> bool:
    if record is None or record.status in retry or is_lost(record):
        return False
    by_limit = record.status == Status.UNAVAILABLE and record.reason.startswith(NOT_TRIED)
    if by_limit or record.status in (Status.TIMED_OUT, Status.OUT_OF_MEMORY):
        return record.limits == limits
    return record.status != Status.UNAVAILABLE or record.environment in environments


def _note(drafts: dict[str, _Draft], event: CellEvent) -> None:
    if isinstance(event, CellStarted):
        drafts[event.cell] = _Draft(event.at)
    elif isinstance(event, CellReading):
        drafts[event.cell].readings.append(event.reading)
    elif isinstance(event, CellNote):
        drafts[event.cell].notes.append(event.text)
    elif isinstance(event, Conditions):
        drafts[event.cell].conditions = event.conditions
    elif isinstance(event, CellEnvironment):
        drafts[event.cell].environment = from_dict(event.environment).digest


def _record(cell: Cell, draft: _Draft, ended: CellFinished, limits: Limits, environment: str) -> Record:
    return Record(
        cell=cell,
        status=str(ended.status),
        reason=ended.reason,
        measurements=gather(draft.readings),
        notes=tuple(draft.notes),
        conditions=draft.conditions,
        environment=draft.environment or environment,
        limits=limits,
        started_at=draft.at,
        duration_s=ended.duration_s,
    )


class _Signals:
    """Turns the first of `ENDING_SIGNALS` into `Interrupted` and ignores later ones.

    Outside the main thread, where Python receives no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}
        self._deferred = False
        self._received = 0

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in ENDING_SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay signals inside the block, while a record is written."""
        self._deferred = True
        yield
        self._deferred = False
        if self._received:
            self._raise()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._received:
            self._received = number
            if not self._deferred:
                self._raise()

    def _raise(self) -> None:
        name = "its time limit" if self._received == TIME_IS_UP else signal.Signals(self._received).name
        logger.warning("ended by %s; the same command resumes from here", name)
        raise Interrupted(128 + self._received)
