"""Files of installed packages and of the system's documentation, by package and kind of file."""

from __future__ import annotations

import gzip
import os
import re
import sysconfig
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

LARGEST_DOCUMENT_B = 1 << 20
"""Text files above this size are left out."""

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
    """Return the folders of the running Python's packages and library, and of the system's documentation,
    headers and packages; those that do not exist have no file.
    """
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


def grouped(
    roots: Sequence[Root],
) -> tuple[dict[str, list[FileEntry]], Counter[str]]:
    """Return the files by the name of their source, in the order of their paths."""
    groups: defaultdict[str, list[FileEntry]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for root in roots:
        for entry in _walk(root.folder):
            kind = kind_of_text(os.path.basename(entry.path))
            if not kind:
                left_out["of another kind"] += 1
            elif entry.size_B > LARGEST_DOCUMENT_B:
                left_out["too large"] += 1
            else:
                groups[f"{_package(root, entry.path)}/{kind}"].append(entry)
    return {name: sorted(groups[name]) for name in groups}, left_out


def _walk(folder: str) -> Iterator[FileEntry]:
    """Return the files below a folder, following no link; a folder that cannot be read has none."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in ("__pycache__", "site-packages"):
                yield from _walk(entry.path)
        elif entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            yield FileEntry(entry.path, status.st_size, status.st_mtime_ns)


def _package(root: Root, path: str) -> str:
    first, below, _ = os.path.relpath(path, root.folder).partition(os.sep)
    if not below:
        return root.prefix.rstrip("-") or first.partition(".")[0].lower()
    name = re.sub(r"-[^-]*\.(dist|egg)-info$|\.libs$", "", first)
    return root.prefix + re.sub(r"[^a-z0-9+.]+", "_", name.lower())


def kind_of_text(name: str) -> str:
    """Return the kind of text that a file of this name has, "" for none."""
    lower = name.lower().removesuffix(".gz")
    suffix = _suffix(lower)
    if suffix in _BY_SUFFIX and suffix not in ("txt", "md", "rst"):
        return _BY_SUFFIX[suffix]
    named = (kind for pattern, kind in NAMED if pattern.match(lower) and ".so." not in lower)
    return next(named, _BY_SUFFIX.get(suffix, ""))


def _suffix(name: str) -> str:
    return name.rpartition(".")[2] if "." in name else ""


def content_of(path: str) -> bytes:
    """Return a file's bytes, unpacked where it ends in .gz, one more than the limit where it is larger."""
    if path.endswith(".gz"):
        with gzip.open(path) as packed:
            return packed.read(LARGEST_DOCUMENT_B + 1)
    with open(path, "rb") as file:
        return file.read(LARGEST_DOCUMENT_B + 1)


def usable(path: str) -> tuple[bytes, str]:
    """Return the file's content, and why it is not a document."""
    try:
        data = content_of(path)
        if len(data) <= LARGEST_DOCUMENT_B:
            data.decode()
    except UnicodeDecodeError:
        return b"", "not UTF-8"
    except (OSError, EOFError, zlib.error):
        return b"", "not readable"
    if not data:
        return b"", "empty"
    return data, "too large" if len(data) > LARGEST_DOCUMENT_B else ""
