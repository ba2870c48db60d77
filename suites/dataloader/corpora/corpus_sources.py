"""What a corpus contains: files of installed packages, as sources of documents."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.records import Unavailable
from suites.dataloader.batch import LoaderError
from suites.dataloader.corpora.installed_files import (
    FileEntry,
    Root,
    content_of,
    default_roots,
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
