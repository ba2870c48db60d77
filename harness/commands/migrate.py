"""`python -m harness migrate`: give the records of an earlier schema version their present names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from harness.commands.entry import DONE, print_all, start
from harness.commands.results import results_folder
from harness.config.validation import ConfigError
from harness.units import counted

USAGE = """\
python -m harness migrate FOLDER [FOLDER ...]

Rewrites the records of an earlier version with their present names; no
measured value is changed.

Exit status: 0, 1 where records cannot be read, 2 for a mistake in the command.
"""


def main(argv: Sequence[str]) -> int:
    """Migrate each folder; return the exit status."""
    logging.basicConfig(format="harness: %(message)s", level=logging.WARNING)
    return start("harness migrate", argv, USAGE, run)


def run(argv: Sequence[str]) -> int:
    """Migrate each folder and print what changed; raises ConfigError and StoreError."""
    from harness.sweep.migrate import migrate, replan

    for word in argv:
        if word.startswith("-"):
            raise ConfigError(f"{word}: no such option; expected FOLDER [FOLDER ...]")
        folder = results_folder(Path(word))
        changed, left_out = migrate(folder), replan(folder)
        cells = counted(left_out, "cell")
        print_all([f"{folder}: {counted(changed, 'record')} rewritten, {cells} left out of the plan"])
    return DONE
