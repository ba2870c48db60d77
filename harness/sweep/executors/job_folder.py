"""The files of one job in the sweep's folder, which the submitting process and the job's node share.

    .jobs/nodes-<kind>.json     the environment of the first node, which later ones must have too
    .jobs/<name>/job.json       what to run; written before the job is submitted
    .jobs/<name>/claim.json     which job runs it, on what node; written once, by the job
    .jobs/<name>/events.jsonl   the events of its cells, appended as they come
    .jobs/<name>/ended          written by the job after its last event

Everything is JSON; nothing is unpickled or evaluated.

The submitting process follows a job by them (`SubmittedJob`): which cells it is to report, and how it ended.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

from harness.records import LOST, Cell, Group, Limits, Sampling, Status
from harness.sweep.environment import Environment, environments, from_dict, kept_in
from harness.sweep.executors import (
    CellEnvironment,
    CellEvent,
    CellFinished,
    CellStarted,
    event_from_json,
    event_to_json,
    now,
)
from harness.sweep.store import replace_file

JOBS = ".jobs"
JOB, CLAIM, EVENTS, ENDED = "job.json", "claim.json", "events.jsonl", "ended"
TASK = "."  # between the name of an array and the number of its task, in the name of a job
UNSEEN = "does not see"  # what a job reports of its node where the folder is not shared with it
NOBODY = "nobody"  # who has claimed the folder of a job that must not begin any more


class JobSpec(NamedTuple):
    """What a job runs."""

    groups: tuple[Group, ...]  # in order
    limits: Limits  # of each cell
    ranks: str  # the executor's
    kind: str  # digest of what was requested, under which nodes must be alike


class JobClaim(NamedTuple):
    """Which job runs the folder's groups: Slurm's id or Ray's node, and the environment there."""

    by: str
    environment: Environment


class JobFolder:
    """One job's folder; its last part is the job's name, which the queue knows it by."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self._read_B = 0

    @classmethod
    def create(cls, sweep: Path, specs: Sequence[JobSpec]) -> list[Self]:
        """Return the folders of new jobs in the folder of their sweep; raises OSError.

        Several jobs are the tasks of one array: `<array>.0`, `<array>.1` and so on.
        """
        array = sweep.resolve() / JOBS / f"{specs[0].groups[0].cells[0].suite}-{uuid4().hex[:12]}"
        folders = []
        for task, spec in enumerate(specs):
            path = array.with_name(f"{array.name}{TASK}{task}") if len(specs) > 1 else array
            path.mkdir(parents=True)
            replace_file(path / JOB, json.dumps(spec._asdict()).encode())
            folders.append(cls(path))
        return folders

    @property
    def array(self) -> Path:
        """Return the path without the number of its task in an array."""
        return self.path.with_name(array_of(self.name))

    def spec(self) -> JobSpec | None:
        """Return what the job runs; None where that was not written, so that no job was submitted."""
        try:
            data = json.loads((self.path / JOB).read_text())
            return JobSpec(
                tuple(_group(*group) for group in data["groups"]),
                Limits(*data["limits"]),
                data["ranks"],
                data["kind"],
            )
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def claim(self, by: str, environment: Environment) -> bool:
        """Write which job runs this folder; return whether this was the first claim. Raises OSError."""
        return write_once(self.path / CLAIM, {"by": by, "environment": environment.to_dict()})

    def forbid(self) -> bool:
        """Keep any job from claiming it; return False where one has already. Raises OSError."""
        return write_once(self.path / CLAIM, {"by": NOBODY}) or self.is_forbidden

    def claimed(self) -> JobClaim | None:
        """Return the job that runs this folder; None where none has begun yet."""
        try:
            data = json.loads((self.path / CLAIM).read_text())
            return JobClaim(data["by"], from_dict(data["environment"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    @property
    def is_forbidden(self) -> bool:
        """Return whether no job may claim it any more."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            return bool(json.loads((self.path / CLAIM).read_text())["by"] == NOBODY)
        return False

    def has_ended(self) -> bool:
        """Return whether the job wrote its last event.

        Listing the folder makes NFS ask for its present content, which a look for one file does not.
        """
        try:
            return ENDED in os.listdir(self.path)
        except OSError:
            return False

    def new_events(self) -> list[CellEvent]:
        """Return the events since the last call; of a line that is not complete yet, none."""
        try:
            with open(self.path / EVENTS, "rb") as file:
                file.seek(self._read_B)
                lines, _, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._read_B += len(lines) + 1 if lines else 0
        return [event_from_json(line) for line in lines.splitlines()]

    def log(self) -> str | None:
        """Return the last line that the job itself printed, errors before output; empty without any.

        None where there is no file for what it prints, as where its node does not see the folder.
        """
        paths = sorted(self.path.glob("*_log.*"))  # .err, .out
        for path in paths:
            with suppress(OSError):
                if lines := list(filter(None, map(str.strip, path.read_text(errors="replace").split("\n")))):
                    return lines[-1]
        return "" if paths else None

    def remove(self) -> None:
        """Remove it, with all its files."""
        shutil.rmtree(self.path, ignore_errors=True)


class EventFile:
    """Appends events on the node; a context manager. The end of a cell is on the disk before the next one."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder.path
        self._fd = os.open(self._folder / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        os.fsync(self._fd)
        os.close(self._fd)
        if kind is None:
            (self._folder / ENDED).touch()

    def write(self, event: CellEvent) -> None:
        """Append one event; raises OSError."""
        line = event_to_json(event).encode() + b"\n"
        while line:
            line = line[os.write(self._fd, line) :]
        if isinstance(event, CellFinished):
            os.fsync(self._fd)


def array_of(name: str) -> str:
    """Return the name of the array that a job is a task of; the job's own name outside an array."""
    return name.partition(TASK)[0]


def job_folders(sweep: Path) -> list[JobFolder]:
    """Return the folders of the jobs that earlier commands submitted, in no order."""
    jobs = sweep.resolve() / JOBS
    return [JobFolder(path) for path in jobs.iterdir() if path.is_dir()] if jobs.is_dir() else []


def nodes_file(jobs: Path, kind: str) -> Path:
    """Return where the first job of a kind keeps its node's environment, which later ones must have too."""
    return jobs / f"nodes-{kind}.json"


def alike(folder: Path, environment: Environment) -> frozenset[str]:
    """Return the digests of the nodes on which cells of `environment` ran, as kept in a results folder.

    The first node's libraries count, because nodes may have others than the submitting process, as in a
    container; so does its commit where git is not installed there. Without a first node, the submitting
    process's libraries count. Empty for this machine's own environment, whose digest is known.
    """
    if not environment.elsewhere:
        return frozenset()
    first = kept_in(nodes_file(folder / JOBS, environment.host))

    def is_alike(node: Environment) -> bool:
        if first is None:
            same = (node.python, node.versions) == (environment.python, environment.versions)
        else:
            same = node.host == first.host
        unknown_commit = first is not None and not node.commit
        same_code = unknown_commit or (node.commit, node.dirty) == (environment.commit, environment.dirty)
        return same and same_code and node.ranks == environment.ranks

    return frozenset(node.digest for node in environments(folder).values() if is_alike(node))


def write_once(path: Path, data: Mapping[str, Any]) -> bool:
    """Write JSON whole or not at all, unless the file is there; return whether it was not. Raises OSError."""
    new = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        new.write_text(json.dumps(data))
        os.link(new, path)
        return True
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)


def _group(cells: Sequence[Sequence[Any]], package: str, sampling: Sequence[Any] | None) -> Group:
    planned = tuple(Cell(*cell) for cell in cells)
    return Group(planned, package, None if sampling is None else Sampling(*sampling))


class JobEnd(NamedTuple):
    """How a job ended, as the queue reports it."""

    status: Status  # of the cell that was running
    reason: str  # the words after "its job"
    by_itself: bool = False  # its program ended, and nobody ended it
    never: bool = False  # it waits and cannot start
    known: bool = True  # whether the queue knows the job
    cause: str = ""  # the last line that its program printed, where the queue has it


class SubmittedJob:
    """Follows one job; passes on the events of the cells that are wanted, and keeps those of others."""

    def __init__(self, folder: JobFolder, spec: JobSpec) -> None:
        self.folder = folder
        self.name = folder.name
        self.spec = spec
        self.cells: frozenset[str] = frozenset(cell.id for group in spec.groups for cell in group.cells)
        self.unasked = set(self.cells)  # that nobody has wanted yet
        self.end: JobEnd | None = None
        self.claim = folder.claimed()
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
