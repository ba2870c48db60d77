"""Documents of a Parquet file: streamed by Arrow, or by row group through a temporary file."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import IO, Any, NamedTuple

from suites.dataloader.batch import LoaderSpec
from suites.dataloader.reading.storage import (
    BUFFER_B,
    CorruptSample,
    Throttle,
    UnreadableFile,
    library,
    one_line,
    open_file,
)

BATCH_B = 64 << 10
"""Text that a Parquet reader decodes at once, by the mean of its row group."""

LARGE_B = 16 << 20
"""Row groups of more encoded bytes than this, over all columns, return what decoding them took.

Others use it again: returned memory comes back by page faults, which cost more than decoding.
"""

TEXT_TYPES = ("string", "large_string", "binary", "large_binary")
COLUMN = "text"


@contextmanager
def _parquet_file(path: str, spec: LoaderSpec) -> Iterator[Any]:
    """Open a file so that it holds one page per column, not a row group."""
    parquet, arrow = library("pyarrow.parquet"), library("pyarrow")
    with open_file(path, spec) if Throttle(spec).slow else nullcontext(path) as given:
        try:
            file = parquet.ParquetFile(given, pre_buffer=False, buffer_size=BUFFER_B)
        except arrow.ArrowException as error:
            raise UnreadableFile(f"it is not a whole Parquet file: {one_line(error)}") from error
        with file:
            yield file


def count_rows(path: str, spec: LoaderSpec) -> int:
    """Return the documents of a Parquet file."""
    with _parquet_file(path, spec) as file:
        return int(file.metadata.num_rows)


def streamed(path: str, spec: LoaderSpec, skip: int) -> Iterator[bytes | CorruptSample]:
    """Return the documents from number `skip` on. A dictionary and a page stay in memory."""
    with _parquet_file(path, spec) as file:
        column = _text_column(file.schema_arrow)
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if skip < rows:
                yield from _row_group(file, group, column, skip)
            skip = max(skip - rows, 0)


def spooled(path: str, spec: LoaderSpec, skip: int) -> Iterator[bytes | CorruptSample]:
    """Return the documents from number `skip` on. A row group is decoded at once into a temporary file.

    Only the documents' offsets stay in memory; the file is in `tempfile.gettempdir()`, has no name and is as
    large as the row group's text. The first document comes when its row group is decoded.
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
            column = _text_column(file.schema_arrow)
            while group < file.metadata.num_row_groups:
                described = file.metadata.row_group(group)
                if skip < described.num_rows:
                    decoded_B = described.total_byte_size
                    return _spool(group, _row_group(file, group, column, skip))
                group, skip = group + 1, skip - described.num_rows
            return None
    finally:
        if decoded_B > LARGE_B:  # it returns free memory of all the process, which then costs page faults
            library("pyarrow").default_memory_pool().release_unused()


def _spool(group: int, documents: Iterator[bytes | CorruptSample]) -> SpooledRowGroup:
    ends, corrupt, end = array("q"), {}, 0
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it is closed with the reader
    try:
        for number, data in enumerate(documents):
            if isinstance(data, CorruptSample):
                corrupt[number] = data
            else:
                end += len(data)
                _write_all(file, data)
            ends.append(end)
    except OSError as error:
        file.close()
        raise UnreadableFile(
            f"row group {group} cannot be kept in {tempfile.gettempdir()}: {one_line(error)}"
        ) from error
    return SpooledRowGroup(group, file, ends, corrupt)


def _write_all(file: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _text_column(schema: Any) -> str:
    if COLUMN not in schema.names:
        raise UnreadableFile(f"it has no column {COLUMN}, but {', '.join(schema.names)}")
    kind = str(schema.field(COLUMN).type)
    if kind not in TEXT_TYPES:
        raise UnreadableFile(f"its column {COLUMN} has type {kind}, not one of {', '.join(TEXT_TYPES)}")
    return COLUMN


def _row_group(file: Any, group: int, column: str, skip: int) -> Iterator[bytes | CorruptSample]:
    """Return a row group's documents; where it is corrupt, all from there on are."""
    arrow = library("pyarrow")
    described = file.metadata.row_group(group)
    batch_rows = max(1, BATCH_B * described.num_rows // max(described.total_byte_size, 1))
    done = 0
    try:
        for batch in file.iter_batches(batch_rows, [group], [column], use_threads=False):
            values = batch.column(0)
            for row in range(max(skip - done, 0), len(values)):
                yield _value(values[row])
            done += len(values)
    except (arrow.ArrowException, OSError) as error:
        reason = f"row group {group} is corrupt after {done} rows: {one_line(error)}"
        for _ in range(max(skip, done), described.num_rows):
            yield CorruptSample(reason)


def _value(value: Any) -> bytes | CorruptSample:
    data = value.as_buffer()
    return CorruptSample("the text is null") if data is None else bytes(data)
