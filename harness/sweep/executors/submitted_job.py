"""A job in a queue as the submitting process follows it: which cells it is to report, and how it ended."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from harness.records import LOST, Status
from harness.sweep.executors import CellEnvironment, CellEvent, CellFinished, CellStarted, now
from harness.sweep.executors.job_folder import JobClaim, JobFolder, JobSpec


class JobEnd(NamedTuple):
    """How a job ended, as the queue reports it.

    `status` is that of the cell that was running, `reason` the words after "its job". `by_itself`: its
    program ended, and nobody ended it. `never`: it waits and cannot start. `known`: whether the queue knows
    the job. `cause`: the last line that its program printed, where the queue has it.
    """

    status: Status
    reason: str
    by_itself: bool = False
    never: bool = False
    known: bool = True
    cause: str = ""


class SubmittedJob:
    """Follows one job; passes on the events of the cells that are wanted, and keeps those of others."""

    def __init__(self, folder: JobFolder, spec: JobSpec) -> None:
        self.folder = folder
        self.name = folder.name
        self.spec = spec
        self.cells: frozenset[str] = frozenset(cell.id for group in spec.groups for cell in group.cells)
        self.unasked = set(self.cells)  # that nobody has wanted yet
        self.end: JobEnd | None = None
        self.claim: JobClaim | None = None
        self._wanted: set[str] = set()
        self._begun: dict[str, str] = {}  # cells that run, and since when, ISO 8601
        self._kept: defaultdict[str, list[CellEvent]] = defaultdict(list)
        self._ended = False
        self._end_seen_s = 0.0
        self._end_confirmed_s = 0.0  # when the queue last gave that end

    @property
    def by(self) -> str:
        """Return which job claimed the folder; "" before one began."""
        return "" if self.claim is None else self.claim.by

    @property
    def is_over(self) -> bool:
        """Return whether it has ended and nothing is expected from it."""
        return not self._wanted and (self._ended or self.end is not None)

    def want(self, cells: Iterable[str]) -> None:
        """Expect these cells' events from now on, the past ones included."""
        self._wanted |= set(cells) & self.cells
        self.unasked -= self._wanted

    def collect(self) -> Iterator[CellEvent]:
        """Yield the new events of wanted cells, after each start the environment of the node."""
        self._read()
        for cell in sorted(self._kept.keys() & self._wanted):
            for event in self._kept.pop(cell):
                if isinstance(event, CellStarted):
                    self._begun[cell] = event.at
                elif isinstance(event, CellFinished):
                    self._wanted.remove(cell)
                yield event
        if self._ended and self._wanted:
            yield from self.finish(JobEnd(Status.UNAVAILABLE, "ended without a report on this cell"))

    def _read(self) -> None:
        """Keep the new events, after each start the environment of the node."""
        self._ended = self.folder.has_ended()  # before the events, which are complete then
        self.claim = self.claim or self.folder.claimed()
        if self.claim is None:
            return
        for event in self.folder.new_events():
            self._kept[event.cell].append(event)
            if isinstance(event, CellStarted):
                self._kept[event.cell].append(CellEnvironment(event.cell, self.claim.environment.to_dict()))

    def keep_finished(self) -> None:
        """Leave only the cells that have ended: the job has, and the others are run again."""
        self._read()
        ended = (cell for cell, kept in self._kept.items() if any(isinstance(e, CellFinished) for e in kept))
        self.cells &= {*ended}
        self.unasked = set(self.cells)

    def note_end(self, end: JobEnd | None) -> None:
        """Keep what the queue reports of its end, if it has ended.

        A job that the queue did not know, and now reports, has not ended or ended otherwise: a queue may
        forget jobs for a moment, as when its controller restarts.
        """
        self._end_confirmed_s = time.monotonic()
        if self.end is None or (not self.end.known and (end is None or end.known)):
            self.end = end
            self._end_seen_s = self._end_confirmed_s

    def is_settled(self, settle_s: float) -> bool:
        """Return whether it ended so long ago that its files must have appeared.

        Where the queue does not know it, the queue must have been asked again after that time.
        """
        if self.end is None:
            return False
        until_s = time.monotonic() if self.end.known else self._end_confirmed_s
        return until_s - self._end_seen_s >= settle_s

    def finish(self, end: JobEnd) -> Iterator[CellEvent]:
        """End the wanted cells that have not ended: the running ones by `end`, the others as not tried."""
        for cell in sorted(self._wanted):
            took_s = 0.0
            if cell in self._begun:
                took_s = (datetime.now(UTC) - datetime.fromisoformat(self._begun[cell])).total_seconds()
            else:
                yield CellStarted(cell, now())
                if self.claim is not None:
                    yield CellEnvironment(cell, self.claim.environment.to_dict())
            status = end.status if cell in self._begun else Status.UNAVAILABLE
            reason = ": ".join(filter(None, (f"{LOST}{end.reason}", end.cause)))
            yield CellFinished(cell, status, reason, max(0.0, took_s))
        self._wanted.clear()
