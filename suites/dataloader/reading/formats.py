"""How each file format is read: the documents of one file from a number on, each as bytes.

Documents of one source in the order of its files, from any number on, with little memory per reader.
"""

from __future__ import annotations

import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from suites.dataloader.batch import LoaderError, LoaderSpec, Source, Tokens, tokenize
from suites.dataloader.reading.parquet_documents import count_rows, spooled, streamed
from suites.dataloader.reading.storage import (
    CorruptSample,
    Throttle,
    UnreadableFile,
    library,
    one_line,
    open_file,
)

LINES_APART = 256
"""Lines of a JSON lines file between two offsets that are remembered."""

ARRAY_RECORD_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
ARRAY_RECORD_BUFFER_B = 32 << 10

_OFFSETS: dict[tuple[str, int, int], dict[int, int]] = {}  # by file, size and time: of every 256th line


class FileFormat(NamedTuple):
    """`size` returns the number of documents of a file, `documents` returns them from a number on."""

    size: Callable[[str, LoaderSpec], int]
    documents: Callable[[str, LoaderSpec, int], Iterator[bytes | CorruptSample]]


def _lines(path: str, spec: LoaderSpec, skip: int) -> Iterator[bytes]:
    """Return the file's lines from line `skip` on; begin at the closest offset known, and remember more."""
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
                yield line
            number += 1
            offset += len(line)


def _count_lines(path: str, spec: LoaderSpec) -> int:
    return sum(1 for _ in _lines(path, spec, 0))


def _json_lines(path: str, spec: LoaderSpec, skip: int) -> Iterator[bytes | CorruptSample]:
    for line in _lines(path, spec, skip):
        yield _text_of(line)


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


def _count_records(path: str, spec: LoaderSpec) -> int:
    reader = _array_record_file(path)
    try:
        return int(reader.num_records())
    finally:
        reader.close()


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


def _members(path: str, spec: LoaderSpec) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    try:
        with open_file(path, spec) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined] # it would keep all
                if member.isfile():
                    yield archive, member
    except tarfile.TarError as error:
        raise UnreadableFile(f"it is not a whole tar file: {error}") from error


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    try:
        content = archive.extractfile(member)
        return content.read() if content else b""
    except tarfile.TarError as error:
        raise UnreadableFile(f"it is truncated in its member {member.name}: {error}") from error


def _count_members(path: str, spec: LoaderSpec) -> int:
    return sum(1 for _ in _members(path, spec))


def _webdataset(path: str, spec: LoaderSpec, skip: int) -> Iterator[bytes | CorruptSample]:
    """Return the files of a tar shard: each is one document."""
    for number, (archive, member) in enumerate(_members(path, spec)):
        if number >= skip:
            yield _member(archive, member)


FORMATS = {
    "jsonl": FileFormat(_count_lines, _json_lines),
    "parquet": FileFormat(count_rows, streamed),
    "array_record": FileFormat(_count_records, _array_record),
    "webdataset": FileFormat(_count_members, _webdataset),
}
"""Readers by `Source.format`. "mds" is read by its own library alone."""

SPOOLED = {**FORMATS, "parquet": FileFormat(count_rows, spooled)}
"""The same, with as little memory per reader as can be."""


Decoded = TypeVar("Decoded")


class BadSample(NamedTuple):
    """A document that cannot be used. `sample`: its number within one epoch; all others keep theirs."""

    source: str
    sample: int
    file: str
    reason: str


def read(
    source: Source, spec: LoaderSpec, first: int = 0, spool: bool = False
) -> Iterator[Tokens | BadSample]:
    """Return the tokens of the source's documents of one epoch, from number `first` on, in the files' order.

    With `spool`, a Parquet row group is decoded at once into a temporary file, for least memory per open
    reader; without, Arrow streams it. Other formats need no such file.

    Raises `LoaderError` where the source is empty, and where a file is missing, cut or of another format
    once reading comes to it; `Unavailable` where the format's library is missing.
    """
    return _decoded(source, _numbered(source, spec, first, spool), _tokens)


def read_text(
    source: Source, spec: LoaderSpec, first: int = 0, spool: bool = False
) -> Iterator[bytes | BadSample]:
    """Return the documents' text as UTF-8, checked, as `read` does: half of the memory of its tokens."""
    return _decoded(source, _numbered(source, spec, first, spool), _utf8)


class _Numbered(NamedTuple):
    number: int
    file: str
    data: bytes | CorruptSample


def _numbered(source: Source, spec: LoaderSpec, first: int, spool: bool = False) -> Iterator[_Numbered]:
    """Check the source at once; open its files when the first document is asked for."""
    if source.format not in FORMATS:
        raise LoaderError(
            f"source {source.name}: format {source.format!r} is not one of {', '.join(sorted(FORMATS))}"
        )
    if not source.files or source.samples <= 0:
        raise LoaderError(
            f"source {source.name} is empty: {len(source.files)} files with {source.samples} documents"
        )
    if not 0 <= first <= source.samples:
        raise LoaderError(
            f"source {source.name}: there is no document {first}; it has {source.samples}, from 0 on"
        )
    return _read_files(source, spec, first, (SPOOLED if spool else FORMATS)[source.format])


def _read_files(source: Source, spec: LoaderSpec, first: int, format: FileFormat) -> Iterator[_Numbered]:
    size_of, documents = format
    number = skip = first
    for file in source.files:
        try:
            if skip and file != source.files[-1]:
                size = size_of(file, spec)
                if skip >= size:
                    skip -= size
                    continue
            for data in documents(file, spec, skip):
                yield _Numbered(number, file, data)
                number += 1
        except (OSError, UnreadableFile) as error:
            reason = "it does not exist" if isinstance(error, FileNotFoundError) else one_line(error)
            raise LoaderError(f"source {source.name}, file {file}: {reason}") from error
        skip = 0
    if number != source.samples:
        raise LoaderError(
            f"source {source.name}, file {source.files[-1]}: the source ends after {number} documents, not "
            f"{source.samples}: a file is truncated, or another one than was counted"
        )


def _decoded(
    source: Source, documents: Iterator[_Numbered], decode: Callable[[bytes], Decoded]
) -> Iterator[Decoded | BadSample]:
    for number, file, data in documents:
        try:
            if isinstance(data, CorruptSample):
                raise data
            got: Decoded | BadSample = decode(data)
        except CorruptSample as error:
            got = BadSample(source.name, number, file, str(error))
        yield got


def _tokens(data: bytes) -> Tokens:
    return tokenize(_utf8(data))


def _utf8(data: bytes) -> bytes:
    if data.isascii():  # much faster, and needs no copy
        return data
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise CorruptSample(f"the text is not UTF-8: {error.reason} at byte {error.start}") from None
    return data
