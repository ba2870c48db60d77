"""`python -m harness.compare A B`: what changed between two results folders, beyond the noise."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.config.validation import ConfigError

USAGE = """\
python -m harness.compare A B [OPTION ...]   what changed from the results folder A to B?

  --fail-above 0.05      exit with 1 where a metric is worse by more than 5 %, beyond the noise of the whole
                         comparison, or a cell no longer ends ok in any repeat
  --markdown PATH        write what is printed to a file, too
  --json PATH            write every metric, in base units, to a file

Exit status: 0 no failure, 1 a failure by --fail-above, 2 a mistake in the command or in a folder.
A metric is worse than before only if it is so among several processes of each run: use repeats=5 for both.
docs/compare.md

python -m harness.compare results/before results/after --fail-above 0.05
"""

NO_FAILURE, FAILURE, MISTAKE = 0, 1, 2
"""Exit statuses."""

OPTIONS = ("--fail-above", "--json", "--markdown")


class CompareCommand(NamedTuple):
    """What was typed."""

    a: Path
    b: Path
    fail_above: float | None = None
    json: Path | None = None
    markdown: Path | None = None


def main(argv: Sequence[str]) -> int:
    """Compare two folders; return the exit status."""
    if not argv or {"-h", "--help"}.intersection(argv):
        sys.stdout.write(USAGE)
        return NO_FAILURE if argv else MISTAKE
    logging.basicConfig(format="harness.compare: %(message)s", level=logging.WARNING)
    try:
        command = read(argv)
        return compare(command)
    except ConfigError as error:
        sys.stderr.write(f"harness.compare: {error}\n")
        return MISTAKE


def read(argv: Sequence[str]) -> CompareCommand:
    """Return what `argv` asks for; raises ConfigError."""
    folders: list[str] = []
    given: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("-"):
            folders.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in OPTIONS:
            raise ConfigError(f"{name}: no such option; allowed: {', '.join(OPTIONS)}, --help")
        if name in given:
            raise ConfigError(f"{name}: given twice")
        given[name] = value if equals else next(words, "")
        if not given[name]:
            raise ConfigError(
                f"{name}: expected {'a share such as 0.05' if name == OPTIONS[0] else 'a path'}"
            )
    if len(folders) != 2:
        raise ConfigError(f"expected two results folders, A and B; got {' '.join(folders) or 'none'}")
    a, b = map(Path, folders)
    paths = [Path(given[name]) if name in given else None for name in OPTIONS[1:]]
    return CompareCommand(a, b, _share(given.get("--fail-above")), *paths)


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise ConfigError(
            f"--fail-above {text}: expected a share of at least 0 and below 1, such as 0.05 for 5 %"
        )
    return share


def compare(command: CompareCommand) -> int:
    """Compare, print and write what was asked for; return the exit status; raises ConfigError."""
    from harness.commands.compare.comparison import compare_folders
    from harness.commands.compare.condition_changes import condition_changes
    from harness.commands.compare.data import as_data
    from harness.commands.compare.folder import CompareError, read_folder
    from harness.commands.compare.lines import markdown

    try:
        a, b = read_folder(command.a), read_folder(command.b)
        found = compare_folders(a, b, command.fail_above)
    except CompareError as error:
        raise ConfigError(str(error)) from None
    conditions = condition_changes(a, b, found.matched)
    text = markdown(a, b, found, conditions)
    if command.markdown is not None:
        _write(command.markdown, text)
    if command.json is not None:
        _write(command.json, json.dumps(as_data(a, b, found, conditions), indent=1, allow_nan=False) + "\n")
    sys.stdout.write(text)
    return FAILURE if found.is_failure else NO_FAILURE


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
