"""Corpora on disk: written once in a format, found again by digest and settings, described by a JSON index.

For example, `write(None, "parquet", sources_of_text(306)).sources`. Sources of documents are files of
installed packages; those of one are written into one file of each format, as users write them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import shutil
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from harness import records
from harness.records import Unavailable
from suites.dataloader.batch import LoaderError, Source, library
from suites.dataloader.installed_files import (
    FileEntry,
    GeneratedDocuments,
    Root,
    content_of,
    default_roots,
    generated,
    grouped,
    usable,
)

TEXT_SOURCES = 306
"""Number of sources of the paper's data set navit_data."""

FEWEST_DOCUMENTS = 4
"""A source of text has at least as many documents."""


class Documents(Protocol):
    """Documents of several sources, by number. `digest` identifies them all."""

    @property
    def digest(self) -> str: ...  # noqa: D102

    @property
    def names(self) -> Sequence[str]: ...  # noqa: D102

    def sizes_B(self, source: int) -> Sequence[int]:
        """Return the bytes of each document of a source."""

    def document(self, source: int, number: int) -> bytes:
        """Return one document."""


@dataclass(frozen=True)
class FileDocuments:
    """Documents that are files. `left_out`: number of files that are not used, by reason."""

    names: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    file_sizes_B: tuple[tuple[int, ...], ...]
    digest: str
    left_out: Mapping[str, int] = field(default_factory=dict)

    def sizes_B(self, source: int) -> Sequence[int]:
        """Return the bytes of each document of a source."""
        return self.file_sizes_B[source]

    def document(self, source: int, number: int) -> bytes:
        """Return the content of one file; raises `LoaderError` where its size has changed since."""
        path = self.files[source][number]
        data = content_of(path)
        if len(data) != self.file_sizes_B[source][number]:
            name = self.names[source]
            raise LoaderError(f"source {name}, file {path}: it has changed since it was described")
        return data


def cache_folder() -> Path:
    """Return the folder of corpora: throughput-harness in XDG_CACHE_HOME, or in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "throughput-harness"


def sources_of_text(
    count: int = TEXT_SOURCES,
    largest_B: int | None = None,
    roots: Sequence[Root] | None = None,
    cache: Path | None = None,
) -> FileDocuments:
    """Return the largest pairs of package and kind of text file, with a digest of names, sizes and contents.

    A document is a file of UTF-8 text of 1 byte to 1 MiB, unpacked where it ends in .gz. Pairs are ordered by
    bytes on disk and have at least four documents. `largest_B` caps the text of each source. The result is
    kept in the folder `cache` and used again while no file's size or time has changed.

    Raises `Unavailable`, with the number found, where there are fewer pairs.
    """
    given = default_roots() if roots is None else tuple(roots)
    groups, left_out = grouped(given)
    kept = (cache or cache_folder()) / f"text-{_fingerprint(groups, count, largest_B)}.json"
    if kept.is_file():
        return _stored(kept)
    order = sorted(groups, key=lambda name: (-sum(one.size_B for one in groups[name]), name))
    found: dict[str, tuple[list[str], list[int]]] = {}
    total = hashlib.sha256()
    for name in order:
        if len(found) < count and len(groups[name]) >= FEWEST_DOCUMENTS:
            files, sizes_B, digest = _described(groups[name], left_out, largest_B)
            if len(files) >= FEWEST_DOCUMENTS:
                found[name] = (files, sizes_B)
                total.update(name.encode() + b"\0" + digest)
    if len(found) < count:
        folders = ", ".join(one.folder for one in given)
        raise Unavailable(
            f"{len(found)} of {count} sources of text found in {folders}: a source is a package's files of "
            f"one kind, at least {FEWEST_DOCUMENTS}; install more packages or ask for fewer sources"
        )
    documents = _file_documents(found, total.hexdigest(), left_out)
    _store(kept, documents)
    return documents


def _described(
    entries: Sequence[FileEntry], left_out: Counter[str], largest_B: int | None
) -> tuple[list[str], list[int], bytes]:
    """Return the files that are documents, their sizes, and a digest of sizes and contents."""
    files: list[str] = []
    sizes_B: list[int] = []
    total = hashlib.sha256()
    text_B = 0
    for entry in entries:
        if largest_B is not None and text_B >= largest_B:
            break
        data, reason = usable(entry.path)
        if reason:
            left_out[reason] += 1
            continue
        files.append(entry.path)
        sizes_B.append(len(data))
        text_B += len(data)
        total.update(len(data).to_bytes(8, "little") + data)
    return files, sizes_B, total.digest()


def _fingerprint(groups: Mapping[str, Sequence[FileEntry]], count: int, largest_B: int | None) -> str:
    """Return a digest of the files' paths, sizes and times, and of the requested count and largest size."""
    total = hashlib.sha256(f"text 1 {count} {largest_B} {FEWEST_DOCUMENTS}".encode())
    for name in sorted(groups):
        for entry in groups[name]:
            line = f"{name}\0{entry.path}\0{entry.size_B}\0{entry.modified_ns}\n"
            total.update(line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()[:16]


def _file_documents(
    found: Mapping[str, tuple[list[str], list[int]]], digest: str, left_out: Mapping[str, int]
) -> FileDocuments:
    return FileDocuments(
        tuple(found),
        tuple(tuple(files) for files, _ in found.values()),
        tuple(tuple(sizes_B) for _, sizes_B in found.values()),
        digest,
        dict(left_out),
    )


def _store(path: Path, documents: FileDocuments) -> None:
    """Write the description where it can be; another process may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    fields = {name: getattr(documents, name) for name in FileDocuments.__dataclass_fields__}
    part.write_text(json.dumps(fields))
    part.replace(path)


def _stored(path: Path) -> FileDocuments:
    fields = json.loads(path.read_text())
    for name in ("files", "file_sizes_B"):
        fields[name] = tuple(tuple(one) for one in fields[name])
    return FileDocuments(**{**fields, "names": tuple(fields["names"])})


class CorpusSettings(NamedTuple):
    """How a corpus is written.

    `seed`: shuffles each source's documents, once. `files_per_source`: files that share its documents in
    equal numbers; fewer where there are fewer documents. `row_group_rows`: of Parquet; 0 leaves pyarrow's
    default, 2^20 rows, which is one row group per file here. `compression`: of Parquet, pyarrow's default.
    """

    seed: int = 0
    files_per_source: int = 1
    row_group_rows: int = 0
    compression: str = "snappy"


class WrittenAs(NamedTuple):
    """The suffix of a file's name, and the function that writes one."""

    suffix: str
    write: Callable[[Path, Iterable[bytes], CorpusSettings], None]


def _jsonl(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for one in documents:
            file.write(json.dumps({"text": one.decode()}, ensure_ascii=False) + "\n")


def _parquet(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    arrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    table = arrow.table({"text": arrow.array(list(documents), arrow.string())})
    parquet.write_table(
        table, path, row_group_size=settings.row_group_rows or None, compression=settings.compression
    )


def _array_record(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    module = library("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), "group_size:1")  # as Grain's documents advise
    for one in documents:
        writer.write(one)
    writer.close()


def _webdataset(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, one in enumerate(documents):
            member = tarfile.TarInfo(f"{number:08d}.txt")
            member.size = len(one)
            archive.addfile(member, io.BytesIO(one))
            archive.members.clear()  # type: ignore[attr-defined] # it would keep all


def _mds(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    streaming = library("streaming")
    with streaming.MDSWriter(out=str(path), columns={"text": "str"}) as writer:
        for one in documents:
            writer.write({"text": one.decode()})


WRITTEN_AS = {
    "jsonl": WrittenAs("jsonl", _jsonl),
    "parquet": WrittenAs("parquet", _parquet),
    "array_record": WrittenAs("array_record", _array_record),
    "webdataset": WrittenAs("tar", _webdataset),
    "mds": WrittenAs("mds", _mds),
}
"""How each format is written. An "mds" file is a folder with an index and shards of its own."""


__all__ = [
    "Corpus",
    "CorpusSettings",
    "Documents",
    "FileDocuments",
    "GeneratedDocuments",
    "Root",
    "cache_folder",
    "generated",
    "load",
    "sources_of_text",
    "write",
]

INDEX = "index.json"
INDEX_VERSION = 1


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sources in one format in a folder. `digest`: of names, sizes and contents, whatever the format."""

    folder: str
    digest: str
    sources: tuple[Source, ...]

    @property
    def documents(self) -> int:
        """Return the documents of all sources."""
        return sum(one.samples for one in self.sources)

    @property
    def text_B(self) -> int:
        """Return the bytes of all documents."""
        return sum(one.text_B for one in self.sources)


def write(
    folder: str | Path | None, format: str, documents: Documents, settings: CorpusSettings | None = None
) -> Corpus:
    """Return the corpus of these documents, written in `folder` (by default the cache) unless it is there.

    Formats: jsonl, parquet, array_record, webdataset and mds. A corpus appears at once when it is complete;
    two processes may write it at the same time. Raises `LoaderError` where an existing one is damaged,
    `Unavailable` where the format's library is missing.
    """
    given = settings or CorpusSettings()
    _refuse(format, documents, given)
    root = Path(folder) if folder is not None else cache_folder()
    key = records.digest([INDEX_VERSION, format, documents.digest, list(documents.names), given._asdict()])
    target = root / f"text-{format}-{key}"
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=root))
        try:
            _write_index(part, documents, _write_sources(part, format, documents, given), given)
            part.chmod(0o755)
            _publish(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return load(target)


def load(folder: str | Path) -> Corpus:
    """Return the corpus that `write` has put into this folder.

    Raises `LoaderError` where the index is missing or damaged, or a file's size is not what was written.
    """
    path = Path(folder) / INDEX
    try:
        index = json.loads(path.read_text())
        if index["index_version"] != INDEX_VERSION:
            raise LoaderError(f"corpus {folder}: its index has version {index['index_version']}, not 1")
        sources = tuple(_source(Path(folder), one) for one in index["sources"])
        return Corpus(str(folder), str(index["digest"]), sources)
    except FileNotFoundError as error:
        raise LoaderError(f"corpus {folder}: {error.filename} does not exist; remove the folder") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoaderError(f"corpus {folder}: its index is damaged ({error}); remove the folder") from error


def _refuse(format: str, documents: Documents, settings: CorpusSettings) -> None:
    if format not in WRITTEN_AS:
        raise ValueError(f"format {format!r} is not one of {', '.join(WRITTEN_AS)}")
    if settings.files_per_source < 1 or settings.row_group_rows < 0:
        raise ValueError("files_per_source is at least 1, row_group_rows at least 0")


def _write_sources(
    folder: Path, format: str, documents: Documents, settings: CorpusSettings
) -> list[dict[str, Any]]:
    """Write all sources and return their entries of the index."""
    suffix, write_file = WRITTEN_AS[format]
    entries = []
    for source, name in enumerate(documents.names):
        sizes_B = documents.sizes_B(source)
        order = list(range(len(sizes_B)))
        random.Random(f"{settings.seed} {name}").shuffle(order)
        count = min(settings.files_per_source, len(order))
        stem = f"{source:04d}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}"
        files = {}
        for number in range(count):
            part = order[number * len(order) // count : (number + 1) * len(order) // count]
            path = folder / (f"{stem}.{suffix}" if count == 1 else f"{stem}-{number:03d}.{suffix}")
            write_file(path, (documents.document(source, one) for one in part), settings)
            files[path.name] = path.stat().st_size if path.is_file() else None
        entries.append(
            {
                "name": name,
                "format": format,
                "samples": len(order),
                "text_B": int(sum(sizes_B)),
                "file_B": files,
            }
        )
    return entries


def _write_index(
    folder: Path, documents: Documents, entries: list[dict[str, Any]], settings: CorpusSettings
) -> None:
    index = {
        "index_version": INDEX_VERSION,
        "digest": documents.digest,
        "settings": settings._asdict(),
        "left_out": dict(getattr(documents, "left_out", {})),
        "sources": entries,
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1))


def _publish(part: Path, target: Path) -> None:
    """Rename the complete corpus; where another process was faster, keep the other's."""
    try:
        os.rename(part, target)
    except OSError:
        if not (target / INDEX).is_file():
            raise


def _source(folder: Path, entry: dict[str, Any]) -> Source:
    for name, size_B in entry["file_B"].items():
        found_B = (folder / name).stat().st_size
        if size_B is not None and found_B != size_B:
            raise LoaderError(
                f"source {entry['name']}, file {folder / name}: it has {found_B} bytes, {size_B} were "
                "written; remove the folder"
            )
    files = tuple(str(folder / name) for name in entry["file_B"])
    return Source(entry["name"], files, entry["format"], int(entry["samples"]), int(entry["text_B"]))
