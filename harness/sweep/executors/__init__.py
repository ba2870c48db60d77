"""Events that any executor reports to the runner: plain data that may cross a pipe, a file or a network.

`local` runs the children here; others run them elsewhere and return the same lines.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, get_args

from harness.records import Group, Limits, Reading
from harness.sweep.environment import Environment


class CellStarted(NamedTuple):
    """A cell has started. `at` is ISO 8601, UTC."""

    cell: str
    at: str


class CellTurn(NamedTuple):
    """Among interleaved cells, this one is running from here on."""

    cell: str


class CellReading(NamedTuple):
    """The cell produced one reading."""

    cell: str
    reading: Reading


class CellNote(NamedTuple):
    """The cell produced a note in words."""

    cell: str
    text: str


class Conditions(NamedTuple):
    """The conditions of the cell's readings."""

    cell: str
    conditions: Mapping[str, str]


class CellEnvironment(NamedTuple):
    """The cell runs on another machine than this process: `Environment.to_dict` there."""

    cell: str
    environment: Mapping[str, Any]


class CellFinished(NamedTuple):
    """The cell has ended; `status` is one of `records.Status`, `reason` a readable text."""

    cell: str
    status: str
    reason: str
    duration_s: float


CellEvent = CellStarted | CellTurn | CellReading | CellNote | Conditions | CellEnvironment | CellFinished
KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in get_args(CellEvent)}


class ExecutorError(Exception):
    """An executor cannot run here; the text is one line with what to do."""


class Executor(Protocol):
    """Runs groups of cells, each group in a process of its own or, after a death, in several."""

    def environment(self) -> Environment:
        """Return what the identity of cells depends on: this machine, or what is known of others."""

    def forks(self, group: Group) -> bool:
        """Return whether this group's child may be forked from a process that has imported its suite."""

    def run(self, groups: Iterable[Group], limits: Limits, several: bool) -> Generator[CellEvent, None, None]:
        """Yield events as they come: per cell first `CellStarted`, last exactly one `CellFinished`.

        A group is requested when it can start; `several`: there may be more than one. An interleaved cell
        starts again from nothing where another of its group ended their process. Closing the generator ends
        every process that it started.
        """


def now() -> str:
    """Return the time, ISO 8601, UTC, in milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def event_to_json(event: CellEvent) -> str:
    """Return one line of JSON without its newline; raises ValueError on what strict JSON cannot express."""
    return json.dumps([type(event).__name__, *event], allow_nan=False, separators=(",", ":"))


def event_from_json(line: str | bytes) -> CellEvent:
    """Return the event on a line; raises ValueError where there is none."""
    try:
        kind, *fields = json.loads(line)
        if kind == CellReading.__name__:
            fields[1] = Reading(*fields[1])
        event: CellEvent = KINDS[kind](*fields)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not an event: {line[:200]!r}") from error
    return event
