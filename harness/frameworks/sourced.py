"""Shell scripts that read others: `source conf/arguments.sh`, or `. CONFIG.sh`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from harness.frameworks.shell_variables import LARGEST_FILE_B, OF_MACHINE, USED, assigned, filled, names_set

NAME = r"""(?:"[^"\n]*"|'[^'\n]*'|\$\([^)\n]*\)|[^\s#;&|])+"""
SOURCE = re.compile(rf"^[^\S\n]*(?:\.|source)[^\S\n]+({NAME})[^;&|\n]*(?:&&|\|\||;)?", re.MULTILINE)
"""A command that sources a file, with its arguments and what joins it to the next."""

ENVIRONMENT = re.compile(r"env|activate|util|profile|cuda|install", re.IGNORECASE)
"""In names of files that set up a machine, and have no options."""


class SourcedScript(NamedTuple):
    """A script with those that it sources in their places."""

    text: str
    read: list[Path]
    missing: list[str]  # names of files that are not there, and may have options


def with_sourced(
    text: str, folder: Path, beside: Sequence[Path] = (), seen: set[Path] | None = None
) -> SourcedScript:
    """Return a script with those that it sources, each once, which lie in its folder or are among `beside`.

    A variable that nothing sets stands for any text in their names. `seen`: those that were read before.
    """
    seen = set() if seen is None else seen
    read: list[Path] = []
    missing: list[str] = []

    def spliced(found: re.Match[str]) -> str:
        name = _name(found[1], text[: found.start()])
        if not name:
            return found[0]
        file = next((path for path in beside if fnmatchcase(f"/{path}", f"*/{name}")), None)
        file = file or _within(folder, name)
        content = _content(file) if file else None
        if file is None or content is None:
            missing.extend([] if ENVIRONMENT.search(name) else [name])
            return f"source {name}\n"
        if file.resolve() in seen:
            return ""
        seen.add(file.resolve())
        inner = with_sourced(content, folder, beside, seen)
        read.extend([file, *inner.read])
        missing.extend(inner.missing)
        return f"{inner.text}\n"

    return SourcedScript(SOURCE.sub(spliced, text), read, missing)


def _within(folder: Path, name: str) -> Path | None:
    """Return a file of a folder or of one below it; None of any other."""
    with suppress(OSError):
        if (folder / name).resolve().is_relative_to(folder.resolve()):
            return folder / name
    return None


def _content(file: Path) -> str | None:
    """Return a script's text; None where there is none, or too much."""
    with suppress(OSError):
        if file.is_file() and file.stat().st_size <= LARGEST_FILE_B:
            return file.read_text(errors="replace")
    return None


def sourced_among(scripts: Sequence[Path]) -> list[Path]:
    """Return the scripts that another of them sources."""
    texts = {script: _content(script) or "" for script in scripts}
    return [
        file for script, text in texts.items() for file in with_sourced(text, script.parent, scripts).read
    ]


def _name(words: str, before: str) -> str:
    """Return the path of a sourced file from its script's folder, with `*` for what only a run knows.

    "" of another file: an absolute one, or one that is no .sh.
    """
    whole = filled(words, dict(assigned(before))).replace('"', "").replace("'", "")
    name = USED.sub("*", whole.replace("$command_output", "")).split(maxsplit=1)[:1]
    if not name or words.startswith("/") or not name[0].endswith(".sh"):
        return ""
    return name[0].lstrip("*").lstrip("/").removeprefix("./") if name[0] != "*.sh" else ""


def unset(text: str) -> bool:
    """Return whether a script uses a variable that neither it nor a machine sets."""
    known = names_set(text)
    used = {found[1] or found[3] for found in USED.finditer(text) if found[2] is None}
    loops = set(re.findall(r"\b(?:for|read(?: -\w+)*)\s+(\w+)", text))
    return any(not OF_MACHINE.fullmatch(name) for name in used - known - loops)
