"""Corpora on disk: written once in a format, found again by digest and settings, described by a JSON index.

Sources of documents are files of installed packages, written into one file of each format.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness import records
from harness.records import Unavailable
from suites.dataloader.batch import LoaderError, Source, library
from suites.dataloader.installed_files import (
    FileEntry,
    GeneratedDocuments,
    content_of,
    default_roots,
    grouped,
    usable,
)

FEWEST_DOCUMENTS = 4  # a source of text has at least as many documents


class FileDocuments(NamedTuple):
    """Documents of several sources that are files, and the bytes of each. `digest` identifies them all."""

    names: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    sizes_B: tuple[tuple[int, ...], ...]
    digest: str

    def document(self, source: int, number: int) -> bytes:
        """Return the content of one file; raises `LoaderError` where its size has changed since."""
        path = self.files[source][number]
        data = content_of(path)
        if len(data) != self.sizes_B[source][number]:
            raise LoaderError(
                f"source {self.names[source]}, file {path}: it has changed since it was described"
            )
        return data


Documents = FileDocuments | GeneratedDocuments


def cache_folder() -> Path:
    """Return the folder of corpora: throughput-harness in XDG_CACHE_HOME, or in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "throughput-harness"


def sources_of_text(count: int) -> FileDocuments:
    """Return the largest pairs of package and kind of text file, with a digest of names, sizes and contents.

    A document is a file of UTF-8 text of 1 byte to 1 MiB, unpacked where it ends in .gz. The result is kept
    in the cache's folder while no file's size or time has changed. Raises `Unavailable` where there are fewer
    pairs.
    """
    roots = default_roots()
    groups = grouped(roots)
    kept = cache_folder() / f"text-{_fingerprint(groups, count)}.json"
    if kept.is_file():
        return msgspec.json.decode(kept.read_bytes(), type=FileDocuments)
    names: list[str] = []
    described = []
    total = hashlib.sha256()
    for name in sorted(groups, key=lambda name: (-sum(one.size_B for one in groups[name]), name)):
        if len(names) < count and len(groups[name]) >= FEWEST_DOCUMENTS:
            files, sizes_B, digest = _described(groups[name])
            if len(files) >= FEWEST_DOCUMENTS:
                names.append(name)
                described.append((tuple(files), tuple(sizes_B)))
                total.update(name.encode() + b"\0" + digest)
    if len(names) < count:
        raise Unavailable(
            f"{len(names)} of {count} sources of text found in {', '.join(one.folder for one in roots)}: a "
            f"source is a package's files of one kind, at least {FEWEST_DOCUMENTS}; install more packages or "
            "ask for fewer sources"
        )
    every_file, every_size_B = zip(*described, strict=True)
    documents = FileDocuments(tuple(names), every_file, every_size_B, total.hexdigest())
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}.part")  # another process may do so at once
    part.write_bytes(msgspec.json.encode(documents))
    part.replace(kept)
    return documents


def _described(entries: Iterable[FileEntry]) -> tuple[list[str], list[int], bytes]:
    """Return the files that are documents, their sizes, and a digest of sizes and contents."""
    files: list[str] = []
    sizes_B: list[int] = []
    total = hashlib.sha256()
    for entry in entries:
        if (data := usable(entry.path)) is not None:
            files.append(entry.path)
            sizes_B.append(len(data))
            total.update(len(data).to_bytes(8, "little") + data)
    return files, sizes_B, total.digest()


def _fingerprint(groups: Mapping[str, Sequence[FileEntry]], count: int) -> str:
    """Return a digest of the files' paths, sizes and times, and of the requested count."""
    total = hashlib.sha256(f"text 2 {count} {FEWEST_DOCUMENTS}".encode())
    for name in sorted(groups):
        for entry in groups[name]:
            line = f"{name}\0{entry.path}\0{entry.size_B}\0{entry.modified_ns}\n"
            total.update(line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()[:16]


def _jsonl(path: Path, documents: Iterable[bytes], row_group_rows: int) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for one in documents:
            file.write(json.dumps({"text": one.decode()}, ensure_ascii=False) + "\n")


def _parquet(path: Path, documents: Iterable[bytes], row_group_rows: int) -> None:
    arrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    table = arrow.table({"text": arrow.array(list(documents), arrow.string())})
    parquet.write_table(table, path, row_group_size=row_group_rows or None)


def _array_record(path: Path, documents: Iterable[bytes], row_group_rows: int) -> None:
    module = library("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), "group_size:1")  # as Grain's documents advise
    for one in documents:
        writer.write(one)
    writer.close()


def _webdataset(path: Path, documents: Iterable[bytes], row_group_rows: int) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, one in enumerate(documents):
            member = tarfile.TarInfo(f"{number:08d}.txt")
            member.size = len(one)
            archive.addfile(member, io.BytesIO(one))
            archive.members.clear()  # type: ignore[attr-defined] # it would keep all


def _mds(path: Path, documents: Iterable[bytes], row_group_rows: int) -> None:
    streaming = library("streaming")
    with streaming.MDSWriter(out=str(path), columns={"text": "str"}) as writer:
        for one in documents:
            writer.write({"text": one.decode()})


WRITTEN_BY: dict[str, Callable[[Path, Iterable[bytes], int], None]] = {
    "jsonl": _jsonl,
    "parquet": _parquet,
    "array_record": _array_record,
    "webdataset": _webdataset,
    "mds": _mds,
}
"""What writes a file of each format. One of "mds" is a folder with an index and shards of its own."""

INDEX = "index.json"
INDEX_VERSION = 2


class Corpus(NamedTuple):
    """Sources in one format in a folder, and the size of each file; None: a folder.

    `digest`: of names, sizes and contents, whatever the format.
    """

    digest: str
    sources: tuple[Source, ...]
    file_B: tuple[int | None, ...]

    @property
    def text_B(self) -> int:
        """Return the bytes of all documents."""
        return sum(one.text_B for one in self.sources)


def write(folder: str | Path | None, format: str, documents: Documents, row_group_rows: int = 0) -> Corpus:
    """Return the corpus of these documents, written in `folder` (by default the cache) unless it is there.

    `row_group_rows`: of Parquet; 0 leaves pyarrow's default, one row group per file here. A corpus appears at
    once when it is complete; two processes may write it at the same time. Raises `LoaderError` where an
    existing one is damaged, `Unavailable` where the format's library is missing.
    """
    root = Path(folder) if folder is not None else cache_folder()
    key = records.digest([INDEX_VERSION, format, documents.digest, list(documents.names), row_group_rows])
    target = root / f"text-{format}-{key}"
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=root))
        try:
            (part / INDEX).write_bytes(msgspec.json.encode(_written(part, format, documents, row_group_rows)))
            part.chmod(0o755)
            _publish(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return load(target)


def load(folder: Path) -> Corpus:
    """Return the corpus in this folder; raises `LoaderError` where it is not what was written."""
    try:
        index = msgspec.json.decode((folder / INDEX).read_bytes(), type=Corpus)
        for source, size_B in zip(index.sources, index.file_B, strict=True):
            found_B = (folder / source.file).stat().st_size
            if size_B not in (None, found_B):
                raise LoaderError(
                    f"source {source.name}, file {folder / source.file}: it has {found_B} bytes, {size_B} "
                    "were written; remove the folder"
                )
    except (OSError, ValueError) as error:
        raise LoaderError(f"corpus {folder}: it is damaged ({error}); remove the folder") from error
    return index._replace(sources=tuple(one._replace(file=str(folder / one.file)) for one in index.sources))


def _written(folder: Path, format: str, documents: Documents, row_group_rows: int) -> Corpus:
    """Write all sources, each one's documents in an order shuffled once; return them with files' names."""
    sources, files_B = [], []
    for source, name in enumerate(documents.names):
        sizes_B = documents.sizes_B[source]
        order = list(range(len(sizes_B)))
        random.Random(f"0 {name}").shuffle(order)
        path = folder / f"{source:04d}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.{format}"
        WRITTEN_BY[format](path, (documents.document(source, one) for one in order), row_group_rows)
        sources.append(Source(name, path.name, format, len(order), int(sum(sizes_B))))
        files_B.append(path.stat().st_size if path.is_file() else None)
    return Corpus(documents.digest, tuple(sources), tuple(files_B))


def _publish(part: Path, target: Path) -> None:
    """Rename the complete corpus; where another process was faster, keep the other's."""
    try:
        os.rename(part, target)
    except OSError:
        if not (target / INDEX).is_file():
            raise
