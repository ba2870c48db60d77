"""Records on disk: one line of JSON each, appended atomically; broken lines are set aside on reading.

One process after the other works in a folder: who asks second waits, and finds the first one's records. The
kernel releases a lock with its process, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from harness.records import SCHEMA, Record, Status, record_from_json, record_to_json
from harness.sweep.environment import PREFIX, Environment, environments

logger = logging.getLogger(__name__)

RECORDS = "records.jsonl"
TORN = "records.torn"
LOCK = "lock"
STATUSES = frozenset(Status)
LOCK_ATTEMPTS = 6
LOCK_WAIT_S = 0.1


class StoreError(Exception):
    """A folder of records cannot be read or written; the text is one readable line."""


class OtherSchemaError(StoreError):
    """A folder has records of another schema version; the text is one readable line with what to do."""


class Store:
    """The records of one folder, for one sweep at a time. Use it as a context manager.

    Opening makes the folder, takes its lock and sets broken lines aside. `records` maps a cell's
    id to its latest record. Raises `StoreError`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = -1
        self._file = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            self._take_lock()
            self._hosts = _hosts(folder)
            self.records = _with_hosts(self._repair(), self._hosts)
            self._file = os.open(folder / RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            self._end_B = os.fstat(self._file).st_size
        except OSError as error:
            self.close()
            reason = f"cannot write into {folder}: {error.strerror}; choose another with out=..."
            raise StoreError(reason) from error
        except StoreError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder for another sweep."""
        for fd in (self._file, self._lock):
            if fd >= 0:
                os.close(fd)
        self._file = self._lock = -1

    def append(self, record: Record) -> None:
        """Write `record` as one line, durably; raise `StoreError` and leave no part of it otherwise."""
        line = record_to_json(record).encode() + b"\n"
        try:
            written = os.write(self._file, line)
            os.fsync(self._file)
            reason = "" if written == len(line) else "the disk is full, or a limit on file size is reached"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason:
            with suppress(OSError):
                os.ftruncate(self._file, self._end_B)
            path = self.folder / RECORDS
            raise StoreError(f"cannot write the record of cell {record.cell.id} to {path}: {reason}")
        self._end_B += len(line)
        self.records[record.cell.id] = record._replace(host=self._hosts.get(record.environment, ""))

    def write_environment(self, environment: Environment) -> None:
        """Write the environment that `Record.environment` names, once."""
        self._hosts[environment.digest] = environment.host
        name = f"{PREFIX}{environment.digest}.json"
        if not (self.folder / name).exists():
            text = json.dumps(environment.to_dict(), indent=1) + "\n"
            try:
                replace_file(self.folder / name, text.encode())
            except OSError as error:
                raise StoreError(f"cannot write {self.folder / name}: {error.strerror}") from error

    def _take_lock(self) -> None:
        """Take the folder's lock, waiting briefly for a sweep that is just being killed."""
        for attempt in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt == LOCK_ATTEMPTS - 1:
                    raise StoreError(
                        f"another sweep (pid {_signed(self._lock)}) is writing into {self.folder}; "
                        "wait for it or choose another with out=..."
                    ) from error
                time.sleep(LOCK_WAIT_S)
        _sign(self._lock)

    def _repair(self) -> dict[str, Record]:
        """Return the valid records; move other lines to `records.torn`.

        They are written there before they are removed here.
        """
        path = self.folder / RECORDS
        records, broken = _parse(path)
        if not broken and _is_ended(path):
            return records
        if broken:
            numbers = ", ".join(str(number) for number in broken)
            logger.warning("%s: moved invalid records to %s: line %s", path, TORN, numbers)
        lines = [line + b"\n" for line in _lines(path)]
        if broken:
            with open(self.folder / TORN, "ab") as torn:
                torn.writelines(lines[number - 1] for number in broken)
                torn.flush()
                os.fsync(torn.fileno())
        aside = set(broken)
        replace_file(path, b"".join(line for number, line in enumerate(lines, 1) if number not in aside))
        return records


def read_records(folder: Path) -> list[Record]:
    """Return the latest record of each cell in `folder`, which is not changed; raises `StoreError`."""
    path = folder / RECORDS
    if not path.is_file():
        raise StoreError(f"{folder} holds no {RECORDS}")
    try:
        records, broken = _parse(path)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if broken:
        logger.warning("%s: skipped invalid records: line %s", path, ", ".join(str(n) for n in broken))
    return list(_with_hosts(records, _hosts(folder)).values())


def _hosts(folder: Path) -> dict[str, str]:
    return {digest: one.host for digest, one in environments(folder).items()}


def _with_hosts(records: Mapping[str, Record], known: Mapping[str, str]) -> dict[str, Record]:
    return {cell: record._replace(host=known.get(record.environment, "")) for cell, record in records.items()}


def _parse(path: Path) -> tuple[dict[str, Record], list[int]]:
    """Return records by cell, and the numbers of lines that are no records.

    Raises `StoreError` at a line of another schema version.
    """
    records: dict[str, Record] = {}
    broken: list[int] = []
    with _no_collection():
        for number, line in enumerate(_lines(path), 1):
            try:
                record = _record(line)
            except (LookupError, TypeError, ValueError, RecursionError):
                broken.append(number)
                continue
            if not isinstance(record, Record):
                raise OtherSchemaError(
                    f"{path}, line {number}: a record of schema version {record!r}, not {SCHEMA} as here; "
                    "use the version of the harness that wrote it, or another folder"
                )
            records[record.cell.id] = record
    return records, broken


def _record(line: bytes) -> Record | Any:
    """Return the record on `line`, or its schema version if that differs; raises where it is not a record."""
    data = json.loads(line.decode())
    if data["schema"] != SCHEMA:
        return data["schema"]
    record = record_from_json(data)
    if record.status not in STATUSES or not isinstance(record.cell.id, str):
        raise ValueError("no status, or no cell")
    return record


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without their ends, read lazily; the last may be incomplete."""
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")


def _is_ended(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return True
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def copy_run(source: Path, out: Path) -> None:
    """Copy the data of the run in `source` to `out`, where its report goes, so that its links lead somewhere.

    Raises `StoreError` where `out` cannot be written or has the records of another run.
    """
    if source.resolve() == out.resolve():
        return
    records = source / RECORDS
    try:
        there = (out / RECORDS).read_bytes() if (out / RECORDS).exists() else None
        if there is not None and there != records.read_bytes():
            raise StoreError(f"out={out}: has the records of another run; choose another folder")
        out.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.glob("*.json*")):
            replace_file(out / path.name, path.read_bytes())
    except OSError as error:
        raise StoreError(f"cannot copy {source} to {out}: {error.strerror}; choose another out=") from error


def replace_file(path: Path, content: bytes) -> None:
    """Replace `path` in one step: a reader sees the old content or the new. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    try:
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the cyclic garbage collector from millions of new objects without cycles, now and later."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


TURN = ".turn"  # the file whose lock a process has from its sweep to the end of its report

WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What the system says of a file system without locks, such as Lustre mounted without them."""


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other process has its turn in `folder`, which is made, and have it inside the block.

    Folders that were made for it and stay empty are removed. Raises StoreError where it cannot be written, or
    has no locks.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        file = _locked(folder)
    except OSError as error:
        what = "lock" if error.errno in WITHOUT_LOCKS else "write into"
        reason = f"cannot {what} {folder}: {error.strerror}; choose another with out=..."
        raise StoreError(reason) from error
    try:
        yield
    finally:
        (folder / TURN).unlink(missing_ok=True)
        with suppress(OSError):  # it has results, or another process waits there
            for one in made:
                one.rmdir()
        os.close(file)


def _locked(folder: Path) -> int:
    """Return the open file once its lock is this process's."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(folder / TURN, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # who had the turn has just removed the folder
            continue
        with ExitStack() as unless_locked:
            unless_locked.callback(os.close, file)
            _wait_for(folder, file)
            with suppress(FileNotFoundError):
                if (folder / TURN).stat().st_ino == os.fstat(file).st_ino:
                    unless_locked.pop_all()
                    _sign(file)
                    return file


def _wait_for(folder: Path, file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.warning("%s: waiting for another process (pid %s), which writes there", folder, _signed(file))
        fcntl.flock(file, fcntl.LOCK_EX)


def _sign(lock: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _signed(lock: int) -> str:
    return os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
