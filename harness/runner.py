"""Cells in, records out: gives the executor what is still to be done, and writes each cell's one record.

Between plan and store. Knows neither where children run nor what they do.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from harness.environment import Environment
from harness.executors import Began, Conditions, Ended, Event, Executor, Read, Remarked
from harness.records import Cell, Group, Limits, Reading, Record, Status, gather
from harness.store import Store

logger = logging.getLogger(__name__)

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """SIGINT or SIGTERM ended the sweep; exits with 128 plus the signal's number, as a shell expects."""


@dataclass(slots=True)
class _Draft:
    """What is known of a cell under way."""

    at: str
    readings: list[Reading] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    conditions: Mapping[str, str] = field(default_factory=dict)


def run(
    groups: Sequence[Group],
    store: Store,
    executor: Executor,
    limits: Limits,
    environment: Environment,
    on_event: Callable[[Event], None] = lambda event: None,
) -> None:
    """Run every cell that has no record yet, and append its record as soon as it ends.

    `on_event` is told each event; an `Ended` once its record is on the disk.
    Raises `StoreError` where a record cannot be written, `Interrupted` on SIGINT and SIGTERM; either
    way no child is left, and what had ended has its record.
    """
    store.write_environment(environment)
    waiting = pending(groups, store.records, limits, environment.digest)
    cells = {cell.id: cell for group in waiting for cell in group.cells}
    drafts: dict[str, _Draft] = {}
    with _Signals() as signals, closing(executor.run(waiting, limits)) as events:
        for event in events:
            if isinstance(event, Ended):
                draft = drafts.pop(event.cell)
                with signals.held():
                    store.append(_record(cells.pop(event.cell), draft, event, limits, environment.digest))
            else:
                _note(drafts, event)
            on_event(event)
    if cells:
        raise RuntimeError(f"the executor left {len(cells)} cells without an end: {', '.join(cells)}")


def pending(
    groups: Sequence[Group], records: Mapping[str, Record], limits: Limits, environment: str
) -> list[Group]:
    """What is left of `groups`, each cell once; pure.

    A cell is run again if it ran over other limits than these, or was unavailable in another environment.
    """
    seen: set[str] = set()
    left = []
    for group in groups:
        cells = []
        for cell in group.cells:
            if cell.id not in seen and not _stands(records.get(cell.id), limits, environment):
                cells.append(cell)
            seen.add(cell.id)
        if cells:
            left.append(group._replace(cells=tuple(cells)))
    return left


def _stands(record: Record | None, limits: Limits, environment: str) -> bool:
    if record is None:
        return False
    if record.status in (Status.TIMED_OUT, Status.OUT_OF_MEMORY):
        return record.limits == limits
    return record.status != Status.UNAVAILABLE or record.environment == environment


def _note(drafts: dict[str, _Draft], event: Began | Read | Remarked | Conditions) -> None:
    if isinstance(event, Began):
        drafts[event.cell] = _Draft(event.at)
    elif isinstance(event, Read):
        drafts[event.cell].readings.append(event.reading)
    elif isinstance(event, Remarked):
        drafts[event.cell].remarks.append(event.text)
    else:
        drafts[event.cell].conditions = event.conditions


def _record(cell: Cell, draft: _Draft, ended: Ended, limits: Limits, environment: str) -> Record:
    return Record(
        cell=cell,
        status=str(ended.status),
        reason=ended.reason,
        measurements=gather(draft.readings),
        remarks=tuple(draft.remarks),
        conditions=draft.conditions,
        environment=environment,
        limits=limits,
        started_at=draft.at,
        duration_s=ended.duration_s,
    )


class _Signals:
    """Turns the first SIGINT or SIGTERM into `Interrupted`, and later ones into nothing.

    Outside the main thread, where Python hears no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}
        self._held = False
        self._came = 0

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._hear) for number in ENDING_SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, a signal waits: a record is being written."""
        self._held = True
        yield
        self._held = False
        if self._came:
            self._raise()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self._came:
            self._came = number
            if not self._held:
                self._raise()

    def _raise(self) -> None:
        name = signal.Signals(self._came).name
        logger.warning("ended by %s; the same command goes on from here", name)
        raise Interrupted(128 + self._came)
