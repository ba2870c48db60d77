"""Documents of one source in the order of its files, from any number on, with little memory per reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from suites.dataloader.batch import LoaderError, LoaderSpec, Source, Tokens, tokenize
from suites.dataloader.reading.formats import FORMATS, SPOOLED, FileFormat
from suites.dataloader.reading.storage import CorruptSample, UnreadableFile, one_line

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
