"""Files of installed packages and of the system's documentation, by package and kind, and synthetic text."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import sysconfig
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

LARGEST_DOCUMENT_B = 1 << 20  # text files above this size are left out

KINDS = {
    "header": "h hh hpp hxx cuh inl",
    "cpp": "c cc cpp cxx cu",
    "text": "txt text",
    "yaml": "yaml yml",
    "csv": "csv tsv dat",
    "config": "toml ini cfg conf",
    "html": "html htm xhtml",
    "markdown": "md markdown",
    "javascript": "js mjs ts tsx",
    "cmake": "cmake",
    "perl": "pl pm pod",
    **{
        one: one
        for one in ("py", "pyi", "pyx", "rst", "json", "css", "xml", "svg", "tex", "sh", "lua", "proto")
    },
}
"""Suffixes by kind of file; man pages, licenses, changelogs and readme files are found by name."""

_BY_SUFFIX = {suffix: kind for kind, suffixes in KINDS.items() for suffix in suffixes.split()}

NAMED = (
    (re.compile(r"(licen[cs]e|copying|copyright|notice|authors)"), "license"),
    (re.compile(r"(changelog|changes|news|history|release)"), "changelog"),
    (re.compile(r"(readme|todo|faq|thanks)"), "readme"),
    (re.compile(r"metadata$"), "metadata"),
    (re.compile(r".*\.[1-9][a-z]*$"), "man"),
)


class Root(NamedTuple):
    """A folder of packages. The first part of a file's path in it names its package, after `prefix`."""

    folder: str
    prefix: str = ""


class FileEntry(NamedTuple):
    """A file, as its folder lists it."""

    path: str
    size_B: int
    modified_ns: int


def default_roots() -> tuple[Root, ...]:
    """Return the folders of Python's packages and library, and of the system's documentation and headers."""
    paths = sysconfig.get_paths()
    packages = dict.fromkeys(os.path.realpath(paths[one]) for one in ("purelib", "platlib"))
    return (
        *(Root(one) for one in packages),
        Root(os.path.realpath(paths["stdlib"]), "python-"),
        Root("/usr/share/doc", "doc-"),
        Root("/usr/share/man", "man-"),
        Root("/usr/include", "include-"),
        Root("/usr/lib/python3/dist-packages", "system-"),
        Root("/usr/share/perl", "perl-"),
        Root("/usr/share/perl5", "perl5-"),
    )


def grouped(roots: Sequence[Root]) -> dict[str, list[FileEntry]]:
    """Return the text files of at most 1 MiB by the name of their source, in the order of their paths."""
    groups: defaultdict[str, list[FileEntry]] = defaultdict(list)
    for root in roots:
        for entry in _walk(root.folder):
            kind = kind_of_text(os.path.basename(entry.path))
            if kind and entry.size_B <= LARGEST_DOCUMENT_B:
                groups[f"{_package(root, entry.path)}/{kind}"].append(entry)
    return {name: sorted(groups[name]) for name in groups}


def _walk(folder: str) -> Iterator[FileEntry]:
    """Return the files below a folder, following no link; a folder that cannot be read has none."""
    for where, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if one not in ("__pycache__", "site-packages")]
        for path in (os.path.join(where, name) for name in names):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                yield FileEntry(path, status.st_size, status.st_mtime_ns)


def _package(root: Root, path: str) -> str:
    first, below, _ = os.path.relpath(path, root.folder).partition(os.sep)
    if not below:
        return root.prefix.rstrip("-") or first.partition(".")[0].lower()
    name = re.sub(r"-[^-]*\.(dist|egg)-info$|\.libs$", "", first)
    return root.prefix + re.sub(r"[^a-z0-9+.]+", "_", name.lower())


def kind_of_text(name: str) -> str:
    """Return the kind of text that a file of this name has, "" for none."""
    lower = name.lower().removesuffix(".gz")
    suffix = lower.rpartition(".")[2] if "." in lower else ""
    if suffix in _BY_SUFFIX and suffix not in ("txt", "md", "rst"):
        return _BY_SUFFIX[suffix]
    named = (kind for pattern, kind in NAMED if pattern.match(lower) and ".so." not in lower)
    return next(named, _BY_SUFFIX.get(suffix, ""))


def content_of(path: str) -> bytes:
    """Return a file's bytes, unpacked where it ends in .gz, one more than the limit where it is larger."""
    if path.endswith(".gz"):
        with gzip.open(path) as packed:
            return packed.read(LARGEST_DOCUMENT_B + 1)
    with open(path, "rb") as file:
        return file.read(LARGEST_DOCUMENT_B + 1)


def usable(path: str) -> bytes | None:
    """Return the file's content; None where it is no document: not UTF-8, empty, too large, not readable."""
    try:
        data = content_of(path)
        if not 0 < len(data) <= LARGEST_DOCUMENT_B:
            return None
        data.decode()
    except (UnicodeDecodeError, OSError, EOFError, zlib.error):
        return None
    return data


@dataclass(frozen=True)
class GeneratedDocuments:
    """Synthetic text by seed: words of a Zipf distribution, document sizes of a log-normal one."""

    names: tuple[str, ...]
    sizes_B: tuple[list[int], ...]
    pool: bytes = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Return the digest of all names, sizes and the text that documents are cut from."""
        total = hashlib.sha256(b"generated 1")
        for name, sizes_B in zip(self.names, self.sizes_B, strict=True):
            total.update(name.encode() + np.array(sizes_B, "<i4").tobytes())
        total.update(self.pool)
        return total.hexdigest()

    def document(self, source: int, number: int) -> bytes:
        """Return one document: a part of the pool after its own name."""
        size_B = self.sizes_B[source][number]
        name = f"{self.names[source]} {number}\n".encode()
        first = (number * 2654435761 + source * 40503) % (len(self.pool) - LARGEST_DOCUMENT_B)
        return (name + self.pool[first : first + size_B])[:size_B]


def generated(count: int, documents: int, seed: int = 0, median_B: int = 2048) -> GeneratedDocuments:
    """Return `count` synthetic sources with `documents` documents in total, at least one each.

    Sizes are log-normal around `median_B`, at most 1 MiB; documents per source are log-normal too.
    """
    random = np.random.default_rng(seed)
    shares = random.lognormal(0.0, 1.0, count)
    counts = 1 + np.floor((documents - count) * shares / shares.sum()).astype(np.int64)
    counts[np.argmax(counts)] += documents - counts.sum()
    drawn_B = [random.lognormal(np.log(median_B), 1.5, number) for number in counts]
    sizes_B = tuple(one.clip(1, LARGEST_DOCUMENT_B).astype(np.int32).tolist() for one in drawn_B)
    names = tuple(f"generated-{number:04d}" for number in range(count))
    return GeneratedDocuments(names, sizes_B, _pool(random, 5 * LARGEST_DOCUMENT_B))


def _pool(random: np.random.Generator, size_B: int) -> bytes:
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgk", np.uint8)
    vocabulary = [
        bytes(random.choice(letters, length)) for length in np.clip(random.geometric(0.2, 5000), 1, 14)
    ]
    ranks = np.clip(random.zipf(1.3, size_B // 4), 1, len(vocabulary)) - 1
    text = b" ".join(map(vocabulary.__getitem__, ranks.tolist()))
    return (text * (1 + size_B // len(text)))[:size_B]
