"""`python -m harness.compare A B`: what changed between two results folders, beyond the noise."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from harness.commands.entry import DONE, FAILED, print_all, start
from harness.commands.grammar import read, write_text
from harness.config.validation import ConfigError

USAGE = """\
python -m harness.compare A B [OPTION ...]
    what changed from the results folder A to B?

  --fail-above 0.05      exit with 1 where a metric is worse by more than 5 %,
                         beyond the noise of the whole comparison, or a cell no
                         longer ends ok in any repeat
  --markdown PATH        write what is printed to a file, too
  --json PATH            write every metric, in base units, to a file

Exit status: 0 no failure, 1 a failure by --fail-above, 2 a mistake in the
command or in a folder. A metric is worse than before only if it is so among
several processes of each run: use repeats=5 for both. docs/commands/compare.md

python -m harness.compare results/before results/after --fail-above 0.05
"""

OPTIONS = {"--fail-above": "a share such as 0.05", "--json": "a path", "--markdown": "a path"}
KEYS = ("fail_above", "json", "markdown")


def main(argv: Sequence[str]) -> int:
    """Compare two folders; return the exit status."""
    logging.basicConfig(format="harness.compare: %(message)s", level=logging.WARNING)
    return start("harness.compare", argv, USAGE, compare)


def compare(argv: Sequence[str]) -> int:
    """Compare, print and write what was asked for; return the exit status; raises ConfigError."""
    words = read(argv, KEYS, OPTIONS)
    if len(words.paths) != 2:
        given = " ".join(map(str, words.paths)) or "none"
        raise ConfigError(f"expected two results folders, A and B; got {given}")
    expected = "a share of at least 0 and below 1, such as 0.05 for 5 %"
    fail_above = words.number("fail_above", expected, share=True) if "fail_above" in words else None
    from harness.commands.compare.comparison import compare_folders, read_folder
    from harness.commands.compare.lines import as_data, condition_changes, markdown

    a, b = map(read_folder, words.paths)
    found = compare_folders(a, b, fail_above)
    conditions = condition_changes(a, b, found.matched)
    text = markdown(a, b, found, conditions)
    if (path := words.path("markdown")) is not None:
        write_text(path, text)
    if (path := words.path("json")) is not None:
        write_text(path, json.dumps(as_data(a, b, found, conditions), indent=1, allow_nan=False) + "\n")
    print_all([text.rstrip()])
    return FAILED if found.is_failure else DONE
