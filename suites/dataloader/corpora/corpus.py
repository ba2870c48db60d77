"""Corpora on disk: written once in a format, found again by digest and settings, described by a JSON index.

For example, `write(None, "parquet", sources_of_text(306)).sources`.

How the documents of a source are written into one file of each format, as users write them.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness import records
from suites.dataloader.batch import LoaderError, Source
from suites.dataloader.corpora.corpus_sources import Documents, FileDocuments, cache_folder, sources_of_text
from suites.dataloader.corpora.installed_files import GeneratedDocuments, Root, generated
from suites.dataloader.reading.storage import library


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
