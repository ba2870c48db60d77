"""How each file format is read: the documents of one source from any number on, each as bytes."""

from __future__ import annotations

import json
import os
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import IO, Any, NamedTuple

from suites.dataloader.batch import (
    BUFFER_B,
    CorruptSample,
    LoaderError,
    LoaderSpec,
    Source,
    Throttle,
    UnreadableFile,
    library,
    one_line,
    open_file,
)

BATCH_B = 64 << 10  # text that a Parquet reader decodes at once, by the mean of its row group

LARGE_B = 16 << 20
"""Row groups of more encoded bytes than this, over all columns, return what decoding them took.

Others use it again: returned memory comes back by page faults, which cost more than decoding.
"""

TEXT_TYPES = ("string", "large_string", "binary", "large_binary")
COLUMN = "text"


@contextmanager
def _parquet_file(path: str, spec: LoaderSpec) -> Iterator[Any]:
    """Open a file with a column of text so that it holds one page per column, not a row group."""
    parquet, arrow = library("pyarrow.parquet"), library("pyarrow")
    with open_file(path, spec) if spec.is_slow else nullcontext(path) as given:
        try:
            file = parquet.ParquetFile(given, pre_buffer=False, buffer_size=BUFFER_B)
        except arrow.ArrowException as error:
            raise UnreadableFile(f"it is not a whole Parquet file: {one_line(error)}") from error
        with file:
            names = file.schema_arrow.names
            if COLUMN not in names:
                raise UnreadableFile(f"it has no column {COLUMN}, but {', '.join(names)}")
            kind = str(file.schema_arrow.field(COLUMN).type)
            if kind not in TEXT_TYPES:
                expected = ", ".join(TEXT_TYPES)
                raise UnreadableFile(f"its column {COLUMN} has type {kind}, not one of {expected}")
            yield file


def streamed(path: str, spec: LoaderSpec, skip: int) -> Iterator[bytes | CorruptSample]:
    """Return the documents from number `skip` on. A dictionary and a page stay in memory."""
    with _parquet_file(path, spec) as file:
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if skip < rows:
                yield from _row_group(file, group, skip)
            skip = max(skip - rows, 0)


def spooled(path: str, spec: LoaderSpec, skip: int) -> Iterator[bytes | CorruptSample]:
    """Return the documents from number `skip` on. A row group is decoded at once into a temporary file.

    Only offsets stay in memory; the nameless file in `tempfile.gettempdir()` has the row group's text.
    """
    group = 0
    while (found := _spool_next(path, spec, group, skip)) is not None:
        group, skip = found.group + 1, 0
        with found.file as file:
            begin = 0
            for number, end in enumerate(found.ends):
                yield found.corrupt.get(number) or os.pread(file.fileno(), end - begin, begin)
                begin = end


class SpooledRowGroup(NamedTuple):
    """A decoded row group: documents in a file by the offsets of their ends, and those that are corrupt."""

    group: int
    file: IO[bytes]
    ends: array[int]
    corrupt: dict[int, CorruptSample]


def _spool_next(path: str, spec: LoaderSpec, group: int, skip: int) -> SpooledRowGroup | None:
    """Decode the first row group from `group` on that has rows after the first `skip` ones."""
    decoded_B = 0
    try:
        with _parquet_file(path, spec) as file:
            while group < file.metadata.num_row_groups:
                described = file.metadata.row_group(group)
                if skip < described.num_rows:
                    decoded_B = described.total_byte_size
                    return _spool(group, _row_group(file, group, skip))
                group, skip = group + 1, skip - described.num_rows
            return None
    finally:
        if decoded_B > LARGE_B:  # it returns free memory of all the process, which then costs page faults
            library("pyarrow").default_memory_pool().release_unused()


def _spool(group: int, documents: Iterator[bytes | CorruptSample]) -> SpooledRowGroup:
    ends, corrupt, end = array("q"), {}, 0
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the reader
    try:
        for number, data in enumerate(documents):
            if isinstance(data, CorruptSample):
                corrupt[number] = data
            else:
                end += file.write(data)
            ends.append(end)
        file.flush()
    except OSError as error:
        with suppress(OSError):  # what is left in its buffer does not fit either
            file.close()
        raise UnreadableFile(
            f"row group {group} cannot be kept in {tempfile.gettempdir()}: {one_line(error)}"
        ) from error
    return SpooledRowGroup(group, file, ends, corrupt)


def _row_group(file: Any, group: int, skip: int) -> Iterator[bytes | CorruptSample]:
    """Return a row group's documents; where it is corrupt, all from there on are."""
    arrow = library("pyarrow")
    described = file.metadata.row_group(group)
    batch_rows = max(1, BATCH_B * described.num_rows // max(described.total_byte_size, 1))
    done = 0
    try:
        for batch in file.iter_batches(batch_rows, [group], [COLUMN], use_threads=False):
            values = batch.column(0)
            for row in range(max(skip - done, 0), len(values)):
                data = values[row].as_buffer()
                yield CorruptSample("the text is null") if data is None else bytes(data)
            done += len(values)
    except (arrow.ArrowException, OSError) as error:
        reason = f"row group {group} is corrupt after {done} rows: {one_line(error)}"
        for _ in range(max(skip, done), described.num_rows):
            yield CorruptSample(reason)


LINES_APART = 256  # lines of a JSON lines file between two offsets that are remembered

ARRAY_RECORD_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
ARRAY_RECORD_BUFFER_B = 32 << 10

_OFFSETS: dict[tuple[str, int, int], dict[int, int]] = {}  # by file, size and time: of every 256th line


def _json_lines(path: str, spec: LoaderSpec, skip: int) -> Iterator[bytes | CorruptSample]:
    """Return the lines' texts from line `skip` on; begin at the closest offset known, and remember more."""
    status = os.stat(path)
    with open_file(path, spec) as file:
        known = _OFFSETS.setdefault((path, status.st_size, status.st_mtime_ns), {0: 0})
        nearest = min(skip // LINES_APART, len(known) - 1)
        number, offset = nearest * LINES_APART, known[nearest]
        file.seek(offset)
        for line in file:
            if number % LINES_APART == 0:
                known[number // LINES_APART] = offset
            if number >= skip:
                yield _text_of(line)
            number += 1
            offset += len(line)


def _text_of(line: bytes) -> bytes | CorruptSample:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return CorruptSample(f"the line is not UTF-8: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        torn = "" if line.endswith(b"\n") else ", and it ends without a newline: the file is truncated"
        return CorruptSample(f"the line is not JSON: {error}{torn}")
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        return CorruptSample('the line is not an object with a string "text"')
    try:
        return bytes(value["text"].encode())
    except UnicodeEncodeError as error:
        return CorruptSample(f"the text is not UTF-8: {error.reason} at character {error.start}")


def _array_record_file(path: str) -> Any:
    module = library("array_record.python.array_record_module")
    with open(path, "rb"):  # names a missing file as all other formats do
        pass
    try:
        reader = module.ArrayRecordReader(
            path, ARRAY_RECORD_OPTIONS, file_reader_buffer_size=ARRAY_RECORD_BUFFER_B
        )
        whole = reader.ok()
    except (RuntimeError, ValueError, IndexError) as error:
        raise UnreadableFile(f"it is not a whole ArrayRecord file: {one_line(error)}") from error
    if not whole:
        raise UnreadableFile("it is not a whole ArrayRecord file")
    return reader


def _array_record(path: str, spec: LoaderSpec, skip: int) -> Iterator[bytes | CorruptSample]:
    """Return records by number. The library opens the file itself: the emulated storage waits afterwards."""
    throttle = Throttle(spec)
    reader = _array_record_file(path)
    try:
        for number in range(skip, reader.num_records()):
            begin_s = time.perf_counter()
            record: bytes | CorruptSample
            try:
                (data,) = reader.read([number])
                throttle.wait(len(data), begin_s)
                record = data
            except (RuntimeError, ValueError, IndexError) as error:
                record = CorruptSample(f"the record is corrupt: {one_line(error)}")
                reader.close()
                reader = _array_record_file(path)  # one that failed gives no further record
            yield record
    finally:
        reader.close()


FORMATS = {"jsonl": _json_lines, "parquet": streamed, "array_record": _array_record}
"""What returns the documents of a file from a number on, by `Source.format`."""


class BadSample(NamedTuple):
    """A document that cannot be used. `sample`: its number within one epoch; all others keep theirs."""

    source: str
    sample: int
    file: str
    reason: str


def read_text(
    source: Source, spec: LoaderSpec, first: int = 0, spool: bool = False
) -> Iterator[bytes | BadSample]:
    """Return the UTF-8 text of a source's documents of one epoch, from number `first` on, in their order.

    With `spool`, a Parquet row group is decoded at once into a temporary file, for the least memory per open
    reader; without, Arrow streams it. Raises `LoaderError` where the source is empty, and where the file is
    missing, cut or of another format once reading comes to it; `Unavailable` without the format's library.
    """
    where = f"source {source.name}, file {source.file}"
    if source.samples <= 0:
        raise LoaderError(f"{where}: it is empty, with {source.samples} documents")
    number = first
    documents = spooled if spool and source.format == "parquet" else FORMATS[source.format]
    try:
        for data in documents(source.file, spec, first):
            reason = _fault(data) if isinstance(data, bytes) else str(data)
            if reason or not isinstance(data, bytes):
                yield BadSample(source.name, number, source.file, reason)
            else:
                yield data
            number += 1
    except (OSError, UnreadableFile) as error:
        reason = "it does not exist" if isinstance(error, FileNotFoundError) else one_line(error)
        raise LoaderError(f"{where}: {reason}") from error
    if number != source.samples:
        raise LoaderError(
            f"{where}: the source ends after {number} documents, not {source.samples}: it is truncated, "
            "or another one than was counted"
        )


def _fault(text: bytes) -> str:
    """Return why a text cannot be used; "" where it can."""
    if text.isascii():  # much faster, and needs no copy
        return ""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"the text is not UTF-8: {error.reason} at byte {error.start}"
    return ""
