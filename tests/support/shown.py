"""What pages show of the adviser's and the cost command's answers, run again.

    python -m tests.support.shown README.md docs/commands/*.md       # writes lines that have changed
    python -m tests.support.shown results/reference/advise/*.txt     # all output of each command

A page's block begins with `$ python -m harness.cost ...` and has some lines of the answer.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
FILES = (*ROOT.glob("results/reference/fit/*.*"), *ROOT.glob("tests/data/configs/*.json"))
"""What commands are asked with."""

COMMAND = re.compile(r"\$ python -m (harness\.(?:advise|cost|fit) (?:.*\\\n)*.*)\n")


@cache
def output_of(command: str) -> list[str]:
    """Return the lines that a command prints in a folder with the files that pages name."""
    with TemporaryDirectory() as folder:
        for file in FILES:
            copy(file, folder)
        words = shlex.split(command.replace("\\\n", " "), comments=True)
        ran = subprocess.run([sys.executable, "-m", *words], cwd=folder, env={"PYTHONPATH": str(ROOT)},
                             capture_output=True, text=True, check=False)  # fmt: skip
    if not ran.stdout:
        raise SystemExit(f"{command}: {ran.stderr}")
    return ran.stdout.splitlines()


def blocks_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a page with the lines that are shown of its answer."""
    found = list(COMMAND.finditer(text))
    for at, match in enumerate(found):
        end = found[at + 1].start() if at + 1 < len(found) else len(text)
        shown = text[match.end() : end].split("```")[0]
        lines = [line for line in shown.splitlines() if line.strip()]
        yield match[1], [line for line in lines if not line.startswith(("$ ", "..."))]


def now_of(line: str, output: list[str]) -> str:
    """Return the line of an output in the place of a shown one: alike, and of the same first word."""
    alike = [one for one in output if one.split()[:1] == line.split()[:1]]
    return line if line in output else get_close_matches(line, alike or output, n=1, cutoff=0.0)[0]


def again(text: str) -> str:
    """Return a page with the lines that its commands print today, but for those of `harness.fit`."""
    for command, lines in blocks_of(text):
        if not command.startswith("harness.fit"):
            output = output_of(command)
            for line in lines:
                text = text.replace(f"\n{line}\n", f"\n{now_of(line, output)}\n")
    return text


def all_again(text: str) -> str:
    """Return the commands of a file of answers, each with all that it prints."""
    commands = [match[1] for match in COMMAND.finditer(text)]
    return "\n".join("\n".join([f"$ python -m {one}", *output_of(one), ""]) for one in commands)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        before = path.read_text()
        path.write_text(all_again(before) if path.suffix == ".txt" else again(before))
